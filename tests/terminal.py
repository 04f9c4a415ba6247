"""A terminal in place of standard error."""

import contextlib
import logging
import os
import termios


@contextlib.contextmanager
def terminal(monkeypatch, *, rows):
    """Make stderr a terminal of 100 columns; yields its log handler and a reader."""
    screen, keyboard = os.openpty()
    termios.tcsetwinsize(keyboard, (rows, 100))
    with os.fdopen(keyboard, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        console = logging.StreamHandler(stderr)
        monkeypatch.setattr(logging.root, "handlers", [console])

        def shown():
            print("(end)", file=stderr, flush=True)
            found = ""
            while not found.endswith("(end)\r\n"):  # it arrives in pieces
                found += os.read(screen, 1 << 16).decode()
            return found

        yield console, shown
    os.close(screen)
