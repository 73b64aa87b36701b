"""A run looks for cycles seldom, and leaves the collector as it was."""

from __future__ import annotations

import gc

import pytest

from batchwright.lab.garbage import seldom_collected


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (90_000, 5, 5)])
def test_the_threshold_is_raised_and_put_back(before: tuple[int, int, int]) -> None:
    found = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with pytest.raises(KeyError), seldom_collected():
            assert gc.get_threshold() == ((50_000, *before[1:]) if before[0] == 700 else before)
            raise KeyError
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*found)
