"""A ring of tokens so small that it comes round, and requests are settled, often."""

from __future__ import annotations

import pytest

from batchwright import leap, roster, roster_rows, roster_steps, roster_tokens

MODULES = (leap, roster, roster_rows, roster_steps, roster_tokens)


def shrink_ring(monkeypatch: pytest.MonkeyPatch, recent: int, row: int) -> None:
    """From now on rosters are made with a ring of so many steps, in rows of so many places."""
    sizes = {"RECENT": recent, "HALF": recent // 2, "MOST_AHEAD": max(1, recent // 4), "ROW": row}
    for name, size in sizes.items():
        using = [module for module in MODULES if hasattr(module, name)]
        assert using, name
        for module in using:
            monkeypatch.setattr(module, name, size)
