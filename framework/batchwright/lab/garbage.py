"""Python's collector of cycles, while a run goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 50_000
"""New objects from which on cycles are looked for: steps leave none, and looking costs what all objects cost."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Meanwhile, look for cycles after many new objects only; whoever switched that off, or set more, is heeded."""
    before = gc.get_threshold()
    if 0 < before[0] < _MANY:
        gc.set_threshold(_MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
