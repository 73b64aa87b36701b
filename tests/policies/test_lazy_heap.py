from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count, islice

import pytest

from batchwright.lazy_heap import LazyHeap
from batchwright.request import Request
from batchwright_policies.groups import Groups


def test_lowest_first_and_equals_as_they_came():
    heap = LazyHeap({"a": 2, "b": 1, "c": 2, "d": 1}.__getitem__)
    for item in "abcd":
        heap.push(item)
    assert list(heap.in_order()) == ["b", "d", "a", "c"]
    assert list(heap.in_order()) == ["b", "d", "a", "c"]  # looking takes nobody out
    assert heap.first() == "b" and len(heap) == 4 and "a" in heap
    heap.discard("b")
    heap.discard("b")
    assert list(heap.in_order()) == ["d", "a", "c"] and "b" not in heap


def test_ranks_that_rise_by_themselves_and_fall_by_a_push():
    ranks = {"a": 1, "b": 2, "c": 3}
    heap = LazyHeap(ranks.__getitem__)
    heap.fill("abc")
    ranks["a"] = 9
    assert heap.first() == "b" and list(heap.in_order()) == ["b", "c", "a"]
    ranks["a"] = 0
    heap.push("a")
    assert list(heap.in_order()) == ["a", "b", "c"] and len(heap) == 3


def test_what_changes_during_a_look():
    ranks = {k: k for k in range(10)}
    heap = LazyHeap(ranks.__getitem__)
    heap.fill(range(2, 10))
    look = heap.in_order()
    assert [next(look), next(look)] == [2, 3]
    heap.push(5)  # anew, while it is in
    heap.push(0)  # it comes up though it ranks before what was seen
    heap.discard(4)
    assert heap.first() == 0
    assert list(look) == [0, 5, 6, 7, 8, 9]
    assert list(heap.in_order()) == [0, 2, 3, 5, 6, 7, 8, 9]


def test_first_sees_who_is_aside():
    heap = LazyHeap(lambda k: k)
    heap.fill([1, 2, 3])
    look = heap.in_order()
    assert [next(look), next(look)] == [1, 2]
    heap.discard(1)
    assert heap.first() == 2
    heap.discard(2)
    assert heap.first() == 3
    look.close()
    assert list(heap.in_order()) == [3]


def test_a_new_look_ends_the_old_one():
    heap = LazyHeap(lambda k: k)
    heap.fill([1, 2, 3])
    old = heap.in_order()
    assert next(old) == 1
    new = heap.in_order()
    assert next(new) == 1
    assert list(old) == []
    del old
    assert list(new) == [2, 3]


def test_the_dead_do_not_pile_up():
    heap = LazyHeap(lambda k: k)
    for k in range(5000):
        heap.push(k)
        heap.discard(k - 3)
        assert len(heap._heap) <= 200
    for k in range(5000):
        heap.discard(k)
    assert len(heap) == 0 and len(heap._heap) <= 100 and heap.first() is None and list(heap.in_order()) == []


def test_against_sorting():
    rng = random.Random(1)
    ranks = {k: rng.randrange(50) for k in range(60)}
    heap, inside = LazyHeap(lambda k: (ranks[k], k)), set()
    for _ in range(3000):
        k = rng.randrange(60)
        what = rng.randrange(5)
        if what == 0:
            inside.add(k)
            heap.push(k)
        elif what == 1:
            inside.discard(k)
            heap.discard(k)
        elif what == 2:
            ranks[k] += rng.randrange(3)
        elif what == 3 and k in inside:
            ranks[k] -= rng.randrange(3)
            heap.push(k)
        elif what == 3:
            ranks[k] = rng.randrange(50)
        else:
            most = rng.randrange(6)
            assert list(islice(heap.in_order(), most)) == sorted(inside, key=lambda k: (ranks[k], k))[:most]
        assert heap.first() == min(inside, key=lambda k: (ranks[k], k), default=None)
        assert len(heap) == len(inside)


class Rank:
    """A number that counts how often such are compared."""

    compared = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: Rank) -> bool:
        Rank.compared += 1
        return self.value < other.value

    def __eq__(self, other: object) -> bool:
        Rank.compared += 1
        return isinstance(other, Rank) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def test_comparisons_are_logarithmic():
    size, rng = 100_000, random.Random(3)
    ranks = [Rank(rng.randrange(10**9)) for _ in range(size + 1)]
    heap = LazyHeap(ranks.__getitem__)
    heap.fill(range(size))

    def comparisons(what: Callable[[], object]) -> int:
        Rank.compared = 0
        what()
        return Rank.compared

    most = 4 * 17  # of one operation: two comparisons of tuples on each of log2(100,000) levels, and a few
    assert comparisons(lambda: heap.first()) <= most
    assert comparisons(lambda: heap.push(size)) <= most
    assert comparisons(lambda: heap.push(size // 2)) <= most
    assert comparisons(lambda: heap.discard(7)) == 0
    assert 0 < comparisons(lambda: list(islice(heap.in_order(), 10))) <= 2 * 10 * most
    ranks[heap.first() or 0].value += 10**9
    assert comparisons(lambda: heap.first()) <= most


# Groups ---------------------------------------------------------------------------------------------------------


def request(name: str, index: int) -> Request:
    made = Request(name, [1], client_id=name[0])
    made.arrival_index = index
    return made


def names(requests: object) -> list[str]:
    return [r.request_id for r in requests]  # type: ignore[attr-defined]


def test_groups_by_rank_then_arrival_and_within_by_arrival():
    served = {"a": 1.0, "b": 0.0, "c": 1.0}
    groups: Groups[str | None] = Groups(lambda r: r.client_id, lambda group, _: served[group or ""])
    for index, name in enumerate(["c1", "a1", "b1", "a2", "b2"]):
        groups.push(request(name, index))
    assert names(groups.in_order()) == ["b1", "b2", "c1", "a1", "a2"]
    assert groups.first_group() == "b" and len(groups) == 5 and "c" in groups
    found = []
    for one in groups.in_order():  # charged as they are admitted
        found.append(one.request_id)
        served[one.client_id or ""] += 0.6
    assert found == ["b1", "b2", "c1", "a1", "a2"]
    assert names(groups.oldest(3)) == ["b1", "c1", "a1"]
    assert names(groups.oldest(50)) == ["b1", "b2", "c1", "a1", "a2"]


def test_none_is_a_group_too():
    groups: Groups[str | None] = Groups(lambda r: r.client_id, lambda group, _: 0)
    for index in range(3):
        made = Request(f"r{index}", [1], client_id=None if index % 2 == 0 else "b")
        made.arrival_index = index
        groups.push(made)
    assert names(groups.in_order()) == ["r0", "r1", "r2"]


def test_an_emptied_group_is_forgotten_and_a_fallen_rank_is_told():
    served = {"a": 1.0, "b": 0.0}
    groups: Groups[str | None] = Groups(lambda r: r.client_id, lambda group, _: served[group or ""])
    everybody = [request("a1", 0), request("b1", 1), request("a2", 2)]
    groups.fill(everybody)
    groups.discard(everybody[1])
    groups.discard(everybody[1])
    assert len(groups) == 2 and "b" not in groups and names(groups.in_order()) == ["a1", "a2"]
    groups.push(everybody[1])
    served["a"] = -1.0
    groups.rerank("a")
    groups.rerank("nobody")
    assert names(groups.in_order()) == ["a1", "a2", "b1"]
    groups.fill([])
    assert groups.first() is None and groups.first_group() is None and list(groups.in_order()) == []


def test_a_group_that_comes_up_again_during_a_look_is_not_begun_anew():
    groups: Groups[str | None] = Groups(lambda r: r.client_id, lambda group, _: 0)
    everybody = [request(name, index) for index, name in enumerate(["a0", "a1", "b1", "a2"])]
    groups.fill(everybody[1:])
    look = groups.in_order()
    assert next(look).request_id == "a1"
    groups.push(everybody[0])  # evicted in this step
    found = names(look)
    assert sorted(found) in (["a0", "a2", "b1"], ["a2", "b1"])
    assert names(groups.in_order())[0] == "a0"


def test_a_rank_that_rises_whenever_it_is_asked_for_is_an_error() -> None:
    """A clock as rank, say: nobody would ever be first."""
    clock = count()
    heap = LazyHeap[str](lambda item: next(clock))
    for item in "abc":
        heap.push(item)
    with pytest.raises(ValueError, match=r"the rank of a rises each time it is asked for .* not from a clock"):
        heap.first()


def test_all_ranks_may_rise_before_a_look() -> None:
    ranks = {"a": 1, "b": 2, "c": 3}
    heap = LazyHeap[str](ranks.__getitem__)
    for item in ranks:
        heap.push(item)
    ranks.update(a=30, b=20, c=10)
    assert list(heap.in_order()) == ["c", "b", "a"]
