"""The command ``grace``: parse, call, print. Nothing heavy is imported before it is needed."""

from grace.cli.app import main

__all__ = ["main"]
