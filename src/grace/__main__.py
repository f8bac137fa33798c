"""``python -m grace``: the command line without its script on the path."""

from grace.cli import main

main()
