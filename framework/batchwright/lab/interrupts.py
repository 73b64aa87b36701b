"""Ctrl-C during a run."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """While entered, the first Ctrl-C only asks: the run ends between two steps, with records that are whole.

    Pressed again, or while the run only waits for an arrival, it raises ``KeyboardInterrupt`` at once. Outside the main
    thread, where signals do not arrive, nothing changes.

    Attributes:
        asked: whether it was pressed.
        idle: set while the run waits for an arrival.
    """

    def __init__(self) -> None:
        self.asked = False
        self.idle = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        # Where it is ignored, as in a job that a shell runs in the background, it stays so.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if threading.current_thread() is threading.main_thread() and not ignored:
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _pressed(self, *_: object) -> None:
        if self.asked or self.idle:
            raise KeyboardInterrupt
        self.asked = True
