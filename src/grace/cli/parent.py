"""A process that others start ends with the one that started it, however that ends."""

import os
import sys
import threading


def end_with_input() -> None:
    """End this process at once when its standard input is closed.

    Its parent keeps the other end open and writes nothing. When the parent is gone, even killed,
    the system closes it. What is under way can be gone on with later, as after any kill.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        os._exit(130)

    threading.Thread(target=wait, daemon=True, name="end with input").start()
