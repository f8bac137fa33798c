"""The command ``grace``: one file per verb or family of verbs, which parses, calls and shows.

Nothing heavy is imported before it is needed. Decisions are not made here, but in the rooms below.
"""

from grace.cli.app import main

__all__ = ["main"]
