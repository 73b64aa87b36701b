"""The block manager against a brute force that keeps whole prefixes, under all eight cache settings."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright import BlockManager, ConfigError, PrefixCache, Request
from batchwright.request import RESIDENT, WAITING
from batchwright.unshared_blocks import UnsharedBlocks

SETTINGS = [
    PrefixCache(visible=v, reuse=r, duplicates=d)
    for v, r, d in itertools.product(
        ("computed", "scheduled"), ("oldest_freed", "uncached_first"), ("newest", "oldest")
    )
]
BS = 3


class Brute:
    """A pool as lists and dicts of whole prefixes. ``shared``: block to its prefix, in order of registration."""

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.free = list(range(num_blocks))
        self.holders: dict[int, int] = {}
        self.shared: dict[int, tuple[int, ...]] = {}
        self.cache = cache

    def lookup(self, tokens: list[int]) -> list[int]:
        hits = []
        for end in range(BS, len(tokens), BS):
            same = [b for b, prefix in self.shared.items() if prefix == tuple(tokens[:end])]
            if not same:
                break
            hits.append(same[-1] if self.cache.duplicates == "newest" else same[0])
        return hits

    def take(self, num: int) -> list[int]:
        blocks = [self.free.pop(0) for _ in range(num)]
        for block in blocks:
            self.shared.pop(block, None)
            self.holders[block] = 1
        return blocks

    def adopt(self, hits: list[int]) -> None:
        for block in hits:
            if block in self.free:
                self.free.remove(block)
            self.holders[block] = self.holders.get(block, 0) + 1

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                if self.cache.reuse == "uncached_first" and block not in self.shared:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)

    def register(self, block: int, prefix: tuple[int, ...]) -> None:
        self.shared[block] = prefix


class Twin:
    """The manager and the brute force, told the same; compared after everything."""

    def __init__(self, num_blocks: int, cache: PrefixCache, kind: type[BlockManager]) -> None:
        self.blocks = kind(num_blocks, BS, cache)
        self.brute = Brute(num_blocks, cache)
        self.residents: list[Request] = []
        self.waiting: list[Request] = []
        self.computed: dict[Request, int] = {}

    def admit(self, request: Request, num_tokens: int) -> bool:
        hits = self.brute.lookup(list(request._tokens))
        need = max(-(-num_tokens // BS), len(hits)) - sum(b not in self.brute.free for b in hits)
        assert self.blocks.blocks_needed(request, num_tokens) == need
        fits = need <= len(self.brute.free)
        assert self.blocks.can_allocate(self.blocks.lookup(request), num_tokens) == fits
        if not fits:
            return False
        self.blocks.allocate(request, self.blocks.lookup(request), num_tokens)
        request._state = RESIDENT
        self.brute.adopt(hits)
        self.computed[request] = len(hits) * BS
        assert request.block_table == hits + self.brute.take(max(0, -(-num_tokens // BS) - len(hits)))
        self.residents.append(request)
        return True

    def grow(self, request: Request, num_tokens: int) -> None:
        fits = num_tokens - len(request.block_table) * BS <= len(self.brute.free) * BS
        assert self.blocks.can_append(request, num_tokens) == fits
        missing = -(-num_tokens // BS) - len(request.block_table)
        assert self.blocks.blocks_needed(request, num_tokens) == max(0, missing)
        if fits and missing > 0:
            before = list(request.block_table)
            self.blocks.append(request, missing)
            assert request.block_table == before + self.brute.take(missing)

    def compute(self, request: Request, num_tokens: int) -> None:
        """Its first tokens are computed now: full blocks are registered."""
        first, last = self.computed[request] // BS, num_tokens // BS
        if last <= first:
            return
        new = self.blocks.register(request, num_tokens)
        if not self.blocks.cache.enabled:
            assert new == []
            return
        assert new == request.block_table[first:last]
        for index in range(first, last):
            self.brute.register(request.block_table[index], tuple(request._tokens[: (index + 1) * BS]))
        self.computed[request] = last * BS

    def free(self, request: Request) -> None:
        blocks = list(reversed(request.block_table))
        self.blocks.deallocate(request)
        self.brute.release(blocks)
        self.residents.remove(request)
        request._state = WAITING
        assert request.block_table == []

    def unregister(self, block: int) -> None:
        self.blocks.unregister(block)
        self.brute.shared.pop(block, None)

    def check(self) -> None:
        assert list(self.blocks.free) == self.brute.free
        assert self.blocks.num_free == len(self.brute.free)
        assert self.blocks.references == [self.brute.holders.get(b, 0) for b in range(self.blocks.num_blocks)]
        for request in self.waiting:
            expected = self.brute.lookup(list(request._tokens))
            # What is kept between look-ups, and what a fresh request finds, is the same.
            assert list(self.blocks.lookup(Request("fresh", list(request._tokens)))) == expected
            assert list(self.blocks.lookup(request)) == expected


def _play(cache: PrefixCache, seed: int, num_steps: int, kind: type[BlockManager] = BlockManager) -> Twin:
    rng = random.Random(seed)
    twin = Twin(rng.randint(4, 14), cache, kind)
    stems = [[rng.randrange(3) for _ in range(30)] for _ in range(3)]

    def new() -> Request:
        stem = rng.choice(stems)
        cut = rng.randint(1, len(stem))
        request = Request(f"r{rng.random()}", stem[:cut] + [rng.randrange(3) for _ in range(rng.randrange(3))])
        request._state = WAITING
        return request

    for _ in range(num_steps):
        what = rng.random()
        if what < 0.25 and len(twin.waiting) < 5:
            twin.waiting.append(new())
        elif what < 0.5 and twin.waiting:
            request = rng.choice(twin.waiting)
            if twin.admit(request, rng.choice([0, 1, request.num_tokens, request.num_tokens + 4])):
                twin.waiting.remove(request)
        elif what < 0.75 and twin.residents:
            request = rng.choice(twin.residents)
            twin.grow(request, rng.randint(1, request.num_tokens))
            room = len(request.block_table) * BS
            upto = min(room, request.num_tokens)
            if upto > twin.computed[request]:
                twin.compute(request, rng.randint(twin.computed[request], upto))
            if room > request.num_tokens and rng.random() < 0.5:
                request._tokens.append(rng.randrange(3))
        elif what < 0.9 and twin.residents:
            request = rng.choice(twin.residents)
            twin.free(request)
            if rng.random() < 0.5:
                twin.waiting.append(request)  # evicted: it comes again, with its hashes
        elif twin.brute.shared and rng.random() < 0.3:
            twin.unregister(rng.choice(list(twin.brute.shared)))
        twin.check()
    return twin


@pytest.mark.parametrize("cache", SETTINGS, ids=lambda c: f"{c.visible}-{c.reuse}-{c.duplicates}")
@given(seed=st.integers(0, 2**32))
def test_random_sequences_against_brute_force(cache: PrefixCache, seed: int) -> None:
    _play(cache, seed, 50)


@pytest.mark.parametrize("kind", [BlockManager, UnsharedBlocks])
@pytest.mark.parametrize("reuse", ["oldest_freed", "uncached_first"])
@given(seed=st.integers(0, 2**32))
def test_without_a_cache_blocks_are_reused_in_the_same_order(kind: type[BlockManager], reuse: Any, seed: int) -> None:
    _play(PrefixCache(enabled=False, reuse=reuse), seed, 50, kind)


def test_the_sequences_are_worth_it() -> None:
    """Random runs must meet hits, duplicates, reuse of cached blocks and a full pool."""
    met: dict[str, int] = {"hits": 0, "duplicates": 0, "full": 0}
    for seed in range(30):
        twin = _play(SETTINGS[seed % 8], seed, 50)
        met["hits"] += any(r.num_tokens and twin.blocks.lookup(r) for r in twin.waiting)
        met["duplicates"] += bool(twin.blocks.index._others)
        met["full"] += not twin.brute.free
    assert min(met.values()) > 3, met


@pytest.mark.parametrize("duplicates", ["newest", "oldest"])
def test_look_ups_stay_right_after_very_many_changes(duplicates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of changes is cut from time to time: look-ups from before the cut begin anew."""
    monkeypatch.setattr("batchwright.prefix_index._LOG_LIMIT", 8)
    for seed in range(20):
        _play(PrefixCache(duplicates=duplicates), seed, 60)


def test_without_a_cache_nothing_is_shared() -> None:
    for kind in (BlockManager, UnsharedBlocks):
        _share_nothing(kind(8, 2, PrefixCache(enabled=False)))


def _share_nothing(blocks: BlockManager) -> None:
    first, second = Request("a", [1, 2, 3, 4, 5]), Request("b", [1, 2, 3, 4, 5])
    for request in (first, second):
        assert not blocks.lookup(request) and blocks.can_allocate(blocks.lookup(request), 5)
        blocks.allocate(request, blocks.lookup(request), 5)
        assert blocks.register(request, 5) == []
    assert (first.block_table, second.block_table) == ([0, 1, 2], [3, 4, 5])
    assert blocks.num_free == 2


def test_append_and_take_back_leave_no_trace() -> None:
    blocks = BlockManager(6, 2)
    request = Request("a", [1, 2, 3])
    blocks.allocate(request, blocks.lookup(request), 3)
    before = list(blocks.free)
    blocks.append(request, 3)
    assert request._room == 10
    blocks.take_back(request, 3)
    assert request.block_table == [0, 1] and request._room == 4
    assert sorted(blocks.free) == sorted(before)


def test_equal_content_is_shared_across_requests_only_as_far_as_it_is_equal() -> None:
    blocks = BlockManager(16, 4)
    first = Request("a", [*range(12), 99])
    blocks.allocate(first, blocks.lookup(first), 13)
    blocks.register(first, 13)
    for prompt, num_hits in [
        ([*range(12)], 2),  # exactly three blocks: the last is never taken from the cache
        ([*range(12), 5], 3),
        ([*range(11), 0, 5], 2),
        ([9, *range(1, 12)], 0),
        ([0], 0),
        ([*range(4)], 0),
        ([*range(5)], 1),
    ]:
        assert list(blocks.lookup(Request("b", prompt))) == first.block_table[:num_hits]


@pytest.mark.parametrize(("name", "value"), [("num_blocks", 0), ("block_size", 0), ("num_blocks", 1.5)])
def test_a_pool_that_cannot_be(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least 1, not {value}"):
        BlockManager(**{"num_blocks": 4, "block_size": 4, name: value})


@pytest.mark.parametrize(
    ("field", "value"), [("visible", "schedule"), ("reuse", "newest"), ("duplicates", ""), ("enabled", "yes")]
)
def test_a_cache_setting_that_does_not_exist(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"prefix_cache.{field} must be one of .*, not '{value}'"):
        PrefixCache(**{field: value})
