"""A scheduler driven at random, by one seed in one way, with or without somebody who watches."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from batchwright.errors import BatchwrightError, PolicyError
from batchwright.limits import Limits
from batchwright.plugins import load_plugins
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.trace import TracedStep, Tracer
from testing.random_policy import RandomPolicy

SHARED = [1, 2, 1, 1, 2, 2, 1, 2, 1, 2, 1, 1, 2, 2, 1, 2]
PLUGINS = load_plugins()
SHIPPED = [n for n in sorted(PLUGINS.policies) if PLUGINS.origin["policies", n] == "policies"]


def shipped(name: str) -> Any:
    """A shipped policy that decides on a small engine."""
    params: dict[str, Any] = {"stall_free": {"chunk_size": 6}, "vllm_v1": {"long_prefill_token_threshold": 5}}
    return PLUGINS.policy(name).from_values(params.get(name, {}))


def some_scheduler(rng: random.Random, policy: Any, **settings: Any) -> Scheduler:
    """A small one, in which everything lacks at times."""
    values: dict[str, Any] = {
        "num_blocks": rng.choice([6, 10, 16, 24]),
        "block_size": rng.choice([1, 2, 4]),
        "limits": Limits(
            rng.choice([1, 3, 8]), rng.choice([2, 4, 7, 16, 64]), rng.choice([None, None, 2, 4]), rng.choice([None, 20])
        ),
        "prefix_cache": PrefixCache(
            enabled=rng.random() < 0.8,
            visible=rng.choice(["computed", "scheduled", "scheduled"]),
            reuse=rng.choice(["oldest_freed", "uncached_first"]),
        ),
        "eos_token_ids": (0,),
        "seed": 3,
        "strict": rng.random() < 0.3,
        "predict_s": lambda batch: 0.001 * batch.num_tokens,
    }
    return Scheduler(policy, **{**values, **settings})


def some_request(rng: random.Random, number: int, now: int) -> Request:
    """With a prefix that others have as well, most often."""
    prompt = SHARED[: rng.choice([0, 4, 8, 12])] + [rng.randrange(3) for _ in range(rng.randint(1, 6))]
    return Request(
        f"r{number}",
        prompt,
        SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=rng.random() < 0.7),
        arrival_ns=now,
        priority=rng.randrange(3),
        client_id=rng.choice("ab"),
        deadline_s=now / 1e9 + rng.random(),
        predicted_output_tokens=rng.randint(0, 12),
    )


def next_token(tokens: Sequence[int]) -> int:
    """A made-up greedy model over three tokens."""
    return zlib.crc32(array("i", tokens).tobytes()) % 3


class Run:
    """One run.

    Attributes:
        decided: what it decided, step by step; errors by their rule.
        traced: the traced steps, if somebody watched.
        seen: how often each kind of reason came about.
    """

    def __init__(
        self,
        seed: int,
        make_policy: Callable[[], Any],
        *,
        watch: bool,
        plugins: Sequence[Any] = (),
        rates: tuple[float, float, float] = (0.1, 0.05, 0.04),
        **settings: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.scheduler = some_scheduler(self.rng, make_policy(), plugins=plugins, **settings)
        self.make_policy = make_policy
        self.abort_rate, self.fail_rate, self.swap_rate = rates
        self.decided: list[Any] = []
        self.traced: list[TracedStep] = []
        self.seen: Counter[str] = Counter()
        self.tracer = Tracer(self.scheduler) if watch else None
        self.now = self.number = 0

    def run(self, num_steps: int) -> Run:
        """So many steps."""
        for _ in range(num_steps):
            self.step()
        if self.tracer is not None:
            self.tracer.close()
        return self

    def step(self) -> None:
        """What happens before a step, the step, and what happens while it is executed."""
        rng, scheduler = self.rng, self.scheduler
        while rng.random() < 0.5 and len(scheduler._state.requests) < 12:
            try:
                scheduler.add(some_request(rng, self.number, self.now))
            except BatchwrightError as error:
                self.decided.append(type(error))
            self.number += 1
        self.abort_some()
        if rng.random() < self.swap_rate:
            scheduler.swap_policy(self.make_policy())
        self.now += 10
        there = self.there()
        if there == ([], []):
            return
        try:
            batch = scheduler.schedule(self.now)
        except PolicyError as error:
            self.decided.append((error.hook, error.rule, error.step, self.there()))
            self.check(there, None, {})
            return
        step = scheduler.step
        rows = {r.request_id: r.num_scheduled for r in step.batch}
        decision = (step.index, list(rows.items()), [r.request_id for r in step.preempted], scheduler.blocks.num_free)
        self.decided.append((decision, self.there()))
        tokens = [
            next_token(list(r.prompt_token_ids) + list(r.output_token_ids))
            for r, samples in zip(step.batch, batch.samples.tolist(), strict=True)
            if samples
        ]
        self.abort_some()
        if len(batch) and rng.random() < self.fail_rate:
            scheduler.fail(batch, "it failed", retry=rng.random() < 0.6, now=self.now + 5)
        else:
            scheduler.update(batch, tokens, self.now + 5)
        self.check(there, step, rows)

    def policy_log(self) -> Any:
        """What a policy that decides by chance has seen and drawn."""
        (policy,) = {id(p): p for p in self.scheduler.policy.slots.values()}.values()
        return policy.log if isinstance(policy, RandomPolicy) else None

    def unfinished_by(self, path: Path) -> list[str]:
        """Who has not ended, by a file of reasons."""
        there: dict[str, None] = {}
        raw = path.read_bytes()
        for line in map(json.loads, (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()):
            if "arrived" in line:
                there[line["arrived"]] = None
            for name in [line.get("ended"), *line.get("finished", {})]:
                there.pop(name, None)
        return list(there)

    def abort_some(self) -> None:
        there = sorted(self.scheduler._state.requests)
        if there and self.rng.random() < self.abort_rate:
            self.scheduler.abort(self.rng.choice(there))

    def there(self) -> tuple[list[str], list[str]]:
        """Who waits and who is resident."""
        return [r.request_id for r in self.scheduler.waiting], [r.request_id for r in self.scheduler.running]

    def check(self, there: tuple[list[str], list[str]], step: Any, rows: dict[str, int]) -> None:
        """Each that was there has one reason, and it agrees with what was seen to happen."""
        if self.tracer is None:
            return
        (traced,) = self.tracer.take()
        self.traced.append(traced)
        assert (list(traced.waiting), list(traced.running)) == there
        assert [r.request_id for r in traced.requests] == [*there[0], *there[1]]
        assert traced.is_undone == (step is None)
        last = self.scheduler.step
        evicted = [r.request_id for r in last.preempted]
        assert list(traced.preempted) == evicted
        for request in traced.requests:
            name, reason = request.request_id, request.reason
            self.seen[reason.kind] += 1
            assert str(reason)
            if name in evicted:
                assert reason.was_evicted, reason
                # A batch that failed was scheduled before it was evicted.
                assert request.num_scheduled == (rows[name] if reason.kind == "retried" else 0)
            elif name in rows:
                assert reason.ran and reason.num_tokens == rows[name] == request.num_scheduled, reason
                assert (reason.kind == "decode") == (request.state == "decode"), reason
                if reason.kind != "decode":
                    assert reason.num_pending == request.num_pending
                    assert (reason.kind == "prompt") == (rows[name] == request.num_pending)
                    assert reason.is_admitted == (request.state == "waiting")
                    assert rows[name] <= reason.budget
            else:
                assert not reason.ran and not reason.was_evicted, reason
                assert not request.num_scheduled
                if reason.kind == "hold":
                    assert reason.num_needed > reason.num_free, reason
            assert (reason.kind == "undone") == (step is None and name not in evicted)
        assert list(traced.batch) == list(rows)


def runs(seed: int, make_policy: Callable[[], Any], num_steps: int, **options: Any) -> Iterator[Run]:
    """The same run unwatched and watched."""
    yield Run(seed, make_policy, watch=False, **options).run(num_steps)
    yield Run(seed, make_policy, watch=True, **options).run(num_steps)


def random_policy(rng: random.Random, fault_rate: float) -> Callable[[], RandomPolicy]:
    """Makes equal policies that decide by chance."""
    params: dict[str, Any] = {
        "seed": rng.randrange(10**6),
        "counts_decodes": rng.random() < 0.7,
        "fault_rate": fault_rate,
        "hold_rate": rng.choice([0.0, 0.5]),
        "cut_rate": rng.choice([0, 0.5, 1]),
        "steady_rate": rng.choice([0, 0, 0.9]),
    }
    return lambda: RandomPolicy(**params)
