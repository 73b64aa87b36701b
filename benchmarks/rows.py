"""What is timed: each row builds a scheduler in the state that it is about, and has one piece of work to time."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from peers import Peer

AnyPeer = TypeVar("AnyPeer", bound=Peer)
Make = Callable[[int, int, int, int], Peer]
"""Makes a peer of: blocks of the pool, block size, max_num_seqs, token budget."""


class Row:
    """``prepare`` (not timed), then ``work``; ``divisor`` nanoseconds make one of its unit."""

    def __init__(self, prepare: Callable[[], None], work: Callable[[], None], divisor: float) -> None:
        self.prepare, self.work, self.divisor = prepare, work, divisor

    def run(self) -> float:
        """Time it once."""
        gc.collect()
        gc.disable()
        try:
            self.prepare()  # after the collector, which leaves nothing of anybody's in the caches
            start = time.perf_counter_ns()
            self.work()
            return (time.perf_counter_ns() - start) / self.divisor
        finally:
            gc.enable()


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(length)]


_MOST_STEPS = 10_000


def start_all(peer: Peer, num_requests: int) -> None:
    """Run prompts until all of them decode."""
    for _ in range(_MOST_STEPS):
        n = peer.schedule()
        if n == num_requests == peer.num_sampling():
            peer.update([1] * n)
            return
        peer.update([1] * peer.num_sampling())
    raise AssertionError(f"{peer.name}: {num_requests} requests do not decode together after {_MOST_STEPS:,} steps")


def same_batch(peer: Peer, num_requests: int, steps: int) -> Callable[[], None]:
    """Work of so many steps, each of the same decodes."""
    tokens = [7] * num_requests

    def work() -> None:
        for _ in range(steps):
            n = peer.schedule()
            assert n == num_requests, f"{peer.name}: a batch of {n}, expected {num_requests}"
            peer.update(tokens)

    return work


def decodes(make: Make, num_requests: int, block_size: int, steps: int | None = None) -> Row:
    """A running batch of decodes; µs a request a step."""
    if steps is None:
        steps = max(32, 8192 // num_requests)  # long enough to be steady: each crosses block edges of 16 twice
    per_request = -(-(200 + 64 * steps) // block_size) + 2
    peer = make(per_request * num_requests, block_size, num_requests, num_requests * 400)
    rng = random.Random(1)
    for i in range(num_requests):
        peer.add(random_prompt(rng, 100 + i % 64), 64 * steps)
    start_all(peer, num_requests)
    return Row(lambda: None, same_batch(peer, num_requests, steps), 1e3 * steps * num_requests)


class PreparesInputs(Peer, Protocol):
    def prepare_inputs(self) -> object:
        """What its engine makes of the last batch before the model runs, on CPU tensors."""
        ...


class InputRow(Row):
    """Of each step only what a backend's input preparation takes; µs a step."""

    def __init__(self, peer: PreparesInputs, num_requests: int, steps: int) -> None:
        self._peer, self._num, self._steps = peer, num_requests, steps

    def run(self) -> float:
        spent = 0
        tokens = [7] * self._num
        for _ in range(self._steps):
            assert self._peer.schedule() == self._num
            start = time.perf_counter_ns()
            self._peer.prepare_inputs()
            spent += time.perf_counter_ns() - start
            self._peer.update(tokens)
        return spent / self._steps / 1e3


def inputs(make: Callable[..., PreparesInputs], num_requests: int, block_size: int) -> Row:
    """Input preparation of a batch of decodes, in the middle of nano-vLLM's own benchmark: requests of 100 to 1024
    tokens, and as many to come."""
    peer = make(num_requests * (5000 // block_size + 2), block_size, num_requests, num_requests * 2100)
    rng = random.Random(7)
    for _ in range(num_requests):
        peer.add(random_prompt(rng, rng.randint(100, 1024) + rng.randint(0, 1024)), 3000)
    start_all(peer, num_requests)
    return InputRow(peer, num_requests, 32)


def backlog(make: Make, num_waiting: int) -> Row:
    """64 decodes while many wait behind a prompt that does not fit; µs a step."""
    num_requests, block_size, steps = 64, 256, 64
    growth = num_requests * 8  # blocks that the decodes may take while this is timed
    peer = make(num_requests + growth, block_size, num_requests, 8192)
    rng = random.Random(3)
    for _ in range(num_requests):
        peer.add(random_prompt(rng, 100), growth * block_size)  # without an end here, and less than there is
    start_all(peer, num_requests)
    peer.add([1] * ((growth + num_requests // 2) * block_size - 1), 2)  # more than is free, less than there is
    for _ in range(num_waiting - 1):
        peer.add([1, 2, 3, 4], 2)
    return Row(lambda: None, same_batch(peer, num_requests, steps), 1e3 * steps)


def crowd(make: Make, num_waiting: int) -> Row:
    """256 decodes in all the seats there are, while others wait for one that all rank behind them; µs a step.

    Those who wait differ in rank, so that a sort of them has something to do.
    """
    peer = _full(make, num_waiting)
    return Row(lambda: None, same_batch(peer, 256, 32), 1e3 * 32)


class Ranks(Peer, Protocol):
    def num_waiting(self) -> int: ...


def passing(make: Callable[..., Ranks], num_waiting: int) -> Row:
    """The same, and every other step 8 of a better rank come and take the seats of 8, who are back when these end;
    µs a step."""
    num_steps, num_passing = 32, 8
    peer = _full(make, num_waiting)

    def work() -> None:
        for k in range(num_steps):
            for _ in range(num_passing if k % 2 == 0 else 0):
                peer.add([5] * 4, 1, **_rank_fields(0.0))
            n = peer.schedule()
            assert n == 256, f"{peer.name}: a batch of {n}"
            assert peer.num_waiting() == num_waiting + num_passing * (k % 2 == 0), f"{peer.name}: it evicts others"
            peer.update([7] * n)

    return Row(lambda: None, work, 1e3 * num_steps)


def _full(make: Callable[..., AnyPeer], num_waiting: int) -> AnyPeer:
    """A peer with 256 decodes in as many seats, and others that wait for one."""
    peer = make(256 * 1200 // 16, 16, 256, 32_768)
    rng = random.Random(8)
    for k in range(256):
        peer.add(random_prompt(rng, rng.randint(50, 90)), 1000, **_rank_fields(0.1 + 0.1 * rng.random(), k))
    start_all(peer, 256)
    for k in range(num_waiting):
        peer.add([3] * 700, 2000, **_rank_fields(0.4 + 0.6 * rng.random(), k))
    return peer


def _rank_fields(rank: float, number: int = 0) -> dict[str, Any]:
    """What the ranked policies order by: those of a lower rank go first."""
    return {
        "priority": round(1000 * rank),
        "deadline_s": 1000 * rank,
        "predicted_output_tokens": round(10_000 * rank),
        "client_id": f"client{number % 50}",
    }


def prompt(make: Make, length: int, *, cached: bool) -> Row:
    """Admissions of prompts, one after another, their steps and their ends included; µs a prompt."""
    num = max(1, 4096 // length)
    peer = make(60_000, 16, 16, 65_536)
    rng = random.Random(4)
    known = random_prompt(rng, length)
    prompts = [known]

    def one(prompt: list[int]) -> None:
        peer.add(prompt, 1)
        n = peer.schedule()
        assert n == 1, f"{peer.name}: a batch of {n}"
        peer.update([1])

    if cached:
        one(known)

    def prepare() -> None:
        one(random_prompt(rng, length))  # an admission like it before: a scheduler at work, not one just woken
        prompts[:] = [list(known) if cached else random_prompt(rng, length) for _ in range(num)]

    def work() -> None:
        for prompt in prompts:
            one(prompt)

    return Row(prepare, work, 1e3 * num)


def cached_prompt(make: Make, num_blocks: int, behind: int) -> Row:
    """A 4096-token prompt whose 255 cached blocks of 16 lie in a free list of ``num_blocks``; ms of its admission.

    Args:
        make: of the peer.
        num_blocks: of the pool.
        behind: blocks that stand before the hits in the free list.
    """
    peer = make(num_blocks, 16, 16, 8192)
    rng = random.Random(2)
    prompt, cold = random_prompt(rng, 4096), random_prompt(rng, 4096)

    def one(tokens: list[int]) -> None:
        peer.add(tokens, 1)
        assert peer.schedule() == 1
        peer.update([1])

    def prepare() -> None:
        """Bring the hits from the end of the free list, where the last run left them, to where they are wanted."""
        if first:
            first.clear()
            one(prompt)
        else:
            peer.update([1])
        count = num_blocks - 256 - behind - 256
        while count > 0:  # take blocks from the head of the free list and put them at its end
            size = min(count, 500)
            one(random_prompt(rng, size * 16 - 1))
            count -= size
        one(cold)  # an admission like it before: a scheduler at work, not one just woken
        peer.add(prompt, 1)

    def work() -> None:
        assert peer.schedule() == 1

    first = [True]
    return Row(prepare, work, 1e6)


@dataclass
class Load:
    """A closed run: who arrives at which step."""

    num_blocks: int
    arrivals: list[tuple[int, list[int], int]]  # step, prompt, max_tokens
    block_size: int = 16
    max_num_seqs: int = 64
    budget: int = 2048
    sizes: dict[str, list[int]] = field(default_factory=dict)  # of the batches of each peer

    @property
    def num_outputs(self) -> int:
        """Tokens that come of it."""
        return sum(max_tokens for _, _, max_tokens in self.arrivals)


def steady_mix() -> Load:
    """A prompt of 300 to 700 tokens every third step, each with 128 to answer: some 50 run at a time."""
    rng = random.Random(5)
    return Load(8000, [(3 * i, random_prompt(rng, rng.randint(300, 700)), 128) for i in range(300)])


def full_pool() -> Load:
    """64 at once in a pool that holds about half of what they come to: they evict each other."""
    rng = random.Random(6)
    return Load(700, [(0, random_prompt(rng, rng.randint(100, 200)), 200) for _ in range(64)])


def closed_run(make: Make, load: Load) -> Row:
    """A run from the first arrival to the last token; µs an output token. Batch sizes are asserted to stay the same."""
    peers: list[Peer] = []
    counts: list[int] = []  # tokens sampled in each step, as the first run found them

    def drive(peer: Peer, known: list[int] | None) -> list[int]:
        waiting = iter([*load.arrivals, (2**60, [1], 1)])
        sizes, step, unfinished = [], 0, len(load.arrivals)
        arrives, tokens, most = next(waiting)
        left = load.num_outputs
        while left:
            while arrives <= step:
                peer.add(tokens, most)
                arrives, tokens, most = next(waiting)
            n = peer.schedule()
            assert n or unfinished, f"{peer.name}: an empty batch"
            num_sampling = known[step] if known is not None else peer.num_sampling()
            if known is None:
                counts.append(num_sampling)
            sizes.append(n)
            peer.update([7] * num_sampling)
            left -= num_sampling
            step += 1
        return sizes

    def new() -> Peer:
        return make(load.num_blocks, load.block_size, load.max_num_seqs, load.budget)

    first = new()
    expected = drive(first, None)
    load.sizes[first.name] = expected

    def prepare() -> None:
        peers[:] = [new()]

    def work() -> None:
        assert drive(peers[0], counts) == expected, "the batches of two equal runs differ"

    return Row(prepare, work, 1e3 * load.num_outputs)
