from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchwright.free_list import FreeList

WHAT = ["take", "remove", "first", "last", "first_all", "last_all"]
operations = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 30)), max_size=60)


def as_array(blocks: list[int]) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


@given(st.integers(1, 12), operations)
def test_it_is_a_list(num_blocks: int, todo: list[tuple[str, int]]) -> None:
    free, model = FreeList(num_blocks), list(range(num_blocks))
    taken: list[int] = []
    for what, number in todo:
        if what == "take":
            some = model[: number % (len(model) + 1)]
            assert free.take_all(len(some)) == some
            model = model[len(some) :]
            taken += some
        elif what == "remove":
            some = model[number % 3 :: number % 2 + 1]  # in any number, ends included, runs and single ones
            if number % 5:
                some = some[::-1] if number % 5 == 1 else some[len(some) // 2 :][::-1] + some[: len(some) // 2]
            free.remove_all(as_array(some))
            model = [b for b in model if b not in some]
            taken += some
        elif what.endswith("_all"):
            some = taken[number % 4 :]
            taken = taken[: number % 4]
            if what == "last_all" and number % 2:
                free.put_last(some)
                model += some
            elif what == "first_all":
                free.put_first_all(as_array(some))
                model = some + model
            else:
                free.put_last_all(as_array(some))
                model += some
        elif what in ("first", "last") and taken:
            block = taken.pop(number % len(taken))
            if what == "first":
                free.put_first(block)
                model.insert(0, block)
            else:
                free.put_last([block])
                model.append(block)
        assert list(free) == model
        assert free.count == len(model)


def test_it_starts_in_order() -> None:
    free = FreeList(3)
    assert free.take_all(3) == [0, 1, 2]
    assert free.count == 0 and list(free) == []
    free.put_last([1])
    assert list(free) == [1]
