"""Random workloads on random engines, with and without overlap."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from anyhow import Anyhow
from batchwright import Request, RequestOutput
from fake_backend import FakeBackend, HandClock, expected_tokens
from toolbox import BASIC, check_empty, check_whole, make_engine, make_request, prompt_of


def some_policy(rng: random.Random, names: list[str]) -> Any:
    return Anyhow(rng.randrange(1000)) if rng.random() < 0.25 else rng.choice([*names, "stall_free:chunk_size=6"])


def _cache(rng: random.Random) -> dict[str, Any]:
    return {
        "enabled": rng.random() < 0.9,
        "visible": rng.choice(["computed", "scheduled"]),
        "reuse": rng.choice(["oldest_freed", "uncached_first"]),
        "duplicates": rng.choice(["newest", "oldest"]),
    }


class Run:
    """A random workload on a random engine, the same with and without overlap.

    Attributes:
        outputs: of each request, in order, one that was aborted between two steps among them.
        met: how often something happened.
    """

    def __init__(self, seed: int, *, overlap: bool, names: list[str] = BASIC, **settings: Any) -> None:
        self.rng = rng = random.Random(seed)
        block_size, num_blocks = rng.choice([1, 2, 4]), rng.randint(9, 24)
        self._longest = block_size * num_blocks
        config = settings.pop("config", {})
        self.backend = FakeBackend(num_blocks=num_blocks, block_size=block_size, clock=HandClock(), **settings)
        self.budget, self.seqs = rng.choice([5, 16, 64]), rng.choice([2, 5, 64])
        self.engine, self.tape = make_engine(
            settings.get("policy", some_policy(rng, names)),
            backend=self.backend,
            T=self.budget,
            S=self.seqs,
            max_num_residents=rng.choice([None, 1, 3]),
            prefix_cache=_cache(rng),
            overlap=overlap,
            **config,
        )
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.engine.on_abort = self._take
        self.expected: dict[str, list[int]] = {}
        self.stems = [prompt_of(str(i), 12) for i in range(2)]
        self.num_calls = 0

    def make_requests(self, num: int, **fields: Callable[[list[int]], Any]) -> dict[int, list[Request]]:
        """Requests with prefixes and continuations in common, by the call before which they arrive.

        Args:
            fields: further fields of some, as functions of what they sample.
        """
        rng = self.rng
        when: dict[int, list[Request]] = {}
        for i in range(num):
            prompt = rng.choice(self.stems)[: rng.randint(0, 12)] + prompt_of(str(i % 3), rng.randint(1, 4))
            max_tokens = rng.randint(1, max(1, min(9, self._longest - len(prompt) + 1)))
            prompt = prompt[: self._longest - max_tokens + 1]
            seed = rng.choice([1, 1, 2, i])  # the same again, so that outputs are shared too
            tokens = expected_tokens(prompt, seed, max_tokens)
            more = {name: make(tokens) for name, make in fields.items()}
            logprobs = rng.choice([None, None, 2])
            request = make_request(
                str(i), prompt, max_tokens, seed=seed, priority=rng.randrange(3), logprobs=logprobs, **more
            )
            self.expected[str(i)] = tokens
            when.setdefault(rng.randrange(12), []).append(request)
        return when

    def play(self, when: dict[int, list[Request]], between: Callable[[int], None] = lambda call: None) -> None:
        """Run to the end; the engine is whole after every call."""
        when = dict(when)
        while when or self.engine.has_unfinished():
            for request in when.pop(self.num_calls, ()):
                self.engine.add_request(request)
            between(self.num_calls)
            for output in self.step():
                self._take(output)
            check_whole(self.engine.scheduler)
            self.num_calls += 1
            assert self.num_calls < 3000, self.engine.scheduler.running
        check_empty(self.engine.scheduler)
        assert not self.engine.scheduler.num_observer_faults, [e for s in self.tape.steps for e in s.events]

    def step(self) -> list[RequestOutput]:
        """One call."""
        return self.engine.step()

    def _take(self, output: RequestOutput) -> None:
        told = self.outputs.setdefault(output.request_id, [])
        assert not told or not told[-1].finished, f"{output.request_id} ended twice"
        told.append(output)

    def streams(self) -> dict[str, list[Any]]:
        """What each caller got, output by output."""
        return {
            i: [(o.new_token_ids, o.new_logprobs, o.new_text, o.finished, o.outputs[0].finish_reason) for o in told]
            for i, told in self.outputs.items()
        }
