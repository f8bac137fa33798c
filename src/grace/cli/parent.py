"""End a child process when its parent ends, even if the parent is killed."""

import os
import sys
import threading


def end_with_input() -> None:
    """End this process at once when its standard input is closed.

    The parent keeps the other end of the pipe open and writes nothing. The system closes it when
    the parent ends, even by a kill. The interrupted work can be resumed, as after any kill.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        os._exit(130)

    threading.Thread(target=wait, daemon=True, name="end with input").start()
