"""GRACE: class-incremental learning that grows, assesses and compresses its backbones."""

__version__ = "0.1.0"
