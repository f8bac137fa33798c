"""``python -m grace``: the command, also under ``torchrun -m grace``."""

from grace.cli import main

if __name__ == "__main__":
    main()
