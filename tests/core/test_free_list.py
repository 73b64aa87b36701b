from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchwright.free_list import FreeList

operations = st.lists(st.tuples(st.sampled_from(["take", "remove", "first", "last"]), st.integers(0, 30)), max_size=60)


@given(st.integers(1, 12), operations)
def test_it_is_a_list(num_blocks: int, todo: list[tuple[str, int]]) -> None:
    free, model = FreeList(num_blocks), list(range(num_blocks))
    taken: list[int] = []
    for what, number in todo:
        if what == "take" and model:
            block = free.take()
            assert block == model.pop(0)
            taken.append(block)
        elif what == "remove":
            some = model[number % 3 :: 2]  # in any number, ends included
            free.remove_all(some)
            model = [b for b in model if b not in some]
            taken += some
        elif what in ("first", "last") and taken:
            block = taken.pop(number % len(taken))
            if what == "first":
                free.put_first(block)
                model.insert(0, block)
            else:
                free.put_last(block)
                model.append(block)
        assert list(free) == model
        assert free.count == len(model)


def test_it_starts_in_order() -> None:
    free = FreeList(3)
    assert [free.take(), free.take(), free.take()] == [0, 1, 2]
    assert free.count == 0 and list(free) == []
    free.put_last(1)
    assert list(free) == [1]
