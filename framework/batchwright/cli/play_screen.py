"""A screen of its own on a terminal, and the keys that are pressed there."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|\x1b|.", re.DOTALL)
_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x04": "ctrl-d",
    b"\x15": "ctrl-u",
    b" ": "space",
}


def can_show() -> bool:
    """Whether there is a terminal on both sides whose keys can be read one by one."""
    try:
        import termios  # noqa: F401  # not on Windows
    except ImportError:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The terminal's second screen, while entered; the first comes back as it was.

    Only lines that changed are written, so nothing flickers. Keys come unbuffered and unechoed; Ctrl-C interrupts, and
    Ctrl-Z suspends as anywhere.
    """

    def __init__(self, redraw: Callable[[], None]) -> None:
        """Takes what is called when the terminal's size has changed, or it was used for something else meanwhile."""
        self._redraw = redraw
        self._shown: list[str] = []
        self._settings: Any = None
        self._handlers: dict[int, Any] = {}
        self._keys: list[str] = []
        self._is_drawing = self._is_stale = False

    def __enter__(self) -> Self:
        import termios

        self._settings = termios.tcgetattr(sys.stdin.fileno())
        self._take()
        for number, handler in ((signal.SIGWINCH, self._resized), (signal.SIGTSTP, self._suspended)):
            self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()

    def _take(self) -> None:
        import tty

        tty.setcbreak(sys.stdin.fileno())
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")
        self._shown = []

    def _give_back(self) -> None:
        import termios

        self._write("\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._settings)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _resized(self, *_: object) -> None:
        self._shown = []
        if self._is_drawing:
            self._is_stale = True
        else:
            self._write("\x1b[2J")
            self._redraw()

    def _suspended(self, *_: object) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspended)
        self._take()
        self._redraw()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top; they hold styles, and fit the terminal."""
        self._is_drawing = True
        shown, out = self._shown, []
        for row, line in enumerate(lines):
            if row >= len(shown) or shown[row] != line:
                out.append(f"\x1b[{row + 1};1H{line}\x1b[0m\x1b[K")
        if len(lines) < len(shown):
            out.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = list(lines)
        if out:
            self._write("".join(out))
        self._is_drawing = False
        if self._is_stale:
            self._is_stale = False
            self._resized()

    def key(self) -> str:
        """The next key, by its name or its character; waits for it. "ctrl-d" where the terminal went away."""
        while not self._keys:
            got = os.read(sys.stdin.fileno(), 1024)
            if not got:
                return "ctrl-d"
            for match in _KEY.finditer(got.replace(b"\x1bO", b"\x1b[")):
                self._keys.append(_NAMES.get(match[0], match[0].decode("utf-8", "replace")))
        return self._keys.pop(0)
