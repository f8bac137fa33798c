"""Backbones, heads, the network that grows, merging, losses, and how full a backbone is.

Pure functions and modules of torch live here. Training loops, optimisers and files do not.
"""
