"""A policy through a few requests, step by step: what a test of one property needs.

    tape = drive(MyPolicy(), [Job("long", 160, 1), Job("short", 4, 8, at=1)], max_num_batched_tokens=16)
    print(tape)
    assert tape.first_token("short") <= 2

No engine, no backend and no model: every step takes the same time, and every sampled token is 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchwright.config import EngineConfig
from batchwright.effective import effective_settings
from batchwright.errors import BatchwrightError, ConfigError, RefusedRequestError
from batchwright.policy import Policy
from batchwright.request import Request
from batchwright.resolve import resolve_policy
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.testing.tape import Tape

_LONGEST_PROMPT = 100_000
"""So far from those of the next job the token ids of one begin: no two prompts share a prefix."""


class Job:
    """A request to come, in the numbers that schedulers look at.

    Attributes:
        name: its request id.
        prompt: its length in tokens, of which no other job has any; or the token ids, for a shared prefix.
        output: tokens that it gets.
        at: the step before which it arrives.
        max_tokens: what it declares. Where it is above ``output``, the true length is hidden from the policy.
        fields: further arguments of :class:`batchwright.Request`: ``priority``, ``client_id``, ``deadline_s`` ...

    Raises:
        ConfigError: a number is out of its range.
    """

    __slots__ = ("at", "fields", "max_tokens", "name", "output", "prompt")

    def __init__(
        self,
        name: str,
        prompt: int | Sequence[int],
        output: int,
        *,
        at: int = 0,
        max_tokens: int | None = None,
        **fields: Any,
    ) -> None:
        self.name, self.prompt, self.output, self.at, self.fields = name, prompt, output, at, fields
        self.max_tokens = output if max_tokens is None else max_tokens
        length = prompt if isinstance(prompt, int) else len(prompt)
        if not 1 <= length < _LONGEST_PROMPT:
            raise ConfigError(f"job {name!r}: prompt must have 1 to {_LONGEST_PROMPT - 1} tokens, not {length}")
        if not 1 <= output <= self.max_tokens:
            raise ConfigError(f"job {name!r}: output must be 1 to max_tokens ({self.max_tokens}), not {output}")
        if at < 0:
            raise ConfigError(f"job {name!r}: at must be a step, 0 or later, not {at}")

    def request(self, number: int, now_ns: int) -> Request:
        """Its request, arriving now; ``number`` tells its token ids from those of other jobs."""
        start = number * _LONGEST_PROMPT
        tokens = range(start, start + self.prompt) if isinstance(self.prompt, int) else self.prompt
        params = SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        return Request(self.name, list(tokens), params, arrival_ns=now_ns, **self.fields)


def drive(
    policy: Policy | str | Mapping[str, Any],
    jobs: Iterable[Job],
    *,
    num_blocks: int = 1000,
    block_size: int = 4,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 64,
    max_num_residents: int | None = None,
    prefix_cache: bool | Mapping[str, Any] = True,
    step_s: float = 1.0,
    most_steps: int = 2000,
    **settings: Any,
) -> Tape:
    """Run jobs under a policy until all have ended, and tell what became of each in each step.

    Args:
        policy: an object, or what a config may say: a name, ``file.py:Class``, a mapping of decisions.
        jobs: those that arrive before the same step arrive in this order.
        num_blocks: KV blocks of the pool.
        block_size: tokens of a block.
        max_num_seqs: requests in a step's batch at most.
        max_num_batched_tokens: tokens of a step at most.
        max_num_residents: requests that hold blocks at most; None: what the policy wants, else no bound.
        prefix_cache: False: nothing is shared, nor found again after an eviction; a mapping: as in a config.
        step_s: seconds of the clock that a step takes. With the default, seconds are steps.
        most_steps: after so many it is an error that somebody has not ended.
        **settings: further arguments of :class:`batchwright.Scheduler`: ``plugins``, ``predictor``, ``seed`` ...

    Returns:
        The tape. ``print(tape)`` draws it: a row for each request, a column for each step.

    Raises:
        PolicyError: the policy broke a rule. The tape so far is a note of the error, which pytest shows.
        BatchwrightError: somebody had not ended after ``most_steps``; with the tape as well.
        ConfigError, InvalidRequestError, InfeasibleRequestError: a setting is wrong, or a job can never fit.
    """
    __tracebackhide__ = True  # pytest shows the test
    active = resolve_policy(policy)
    wanted: dict[str, Any] = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    if max_num_residents is not None:
        wanted["max_num_residents"] = max_num_residents
    if prefix_cache is not True:
        wanted["prefix_cache"] = {"enabled": False} if prefix_cache is False else dict(prefix_cache)
    effective = effective_settings(EngineConfig.parse(wanted), active)
    scheduler = Scheduler(
        active,
        num_blocks=num_blocks,
        block_size=block_size,
        limits=effective.limits,
        prefix_cache=effective.prefix_cache,
        **settings,
    )
    coming = deque(sorted(enumerate(jobs), key=lambda pair: pair[1].at))
    tape = Tape()
    step_ns = round(step_s * 1e9)
    try:
        for number in range(most_steps):
            while coming and coming[0][1].at <= number:
                _add(scheduler, tape, *coming.popleft(), now_ns=number * step_ns)
            if scheduler.has_unfinished():
                batch = scheduler.schedule(number * step_ns)
                rows = [(r.request_id, r.num_scheduled) for r in scheduler.step.batch]
                scheduler.update(batch, [0] * sum(batch.samples.tolist()), (number + 1) * step_ns)
                tape.add(number, scheduler.step, rows)
                _check_observers(scheduler)
            elif not coming:
                return tape
        there = [r.request_id for r in (*scheduler.running, *scheduler.waiting)]
        left = ", ".join([*there, *(job.name for _, job in coming)])
        raise BatchwrightError(f"after {most_steps} steps (most_steps) these had not ended: {left}")
    except BatchwrightError as error:
        error.add_note(str(tape))
        # Where the core noticed it tells a policy's author nothing; where the policy raised it stays, as the cause.
        raise error.with_traceback(None) from error.__cause__


def _add(scheduler: Scheduler, tape: Tape, number: int, job: Job, *, now_ns: int) -> None:
    request = job.request(number, now_ns)
    try:
        scheduler.add(request, num_output_tokens=job.output)
        tape.requests[job.name] = request
    except RefusedRequestError as error:
        tape.refused[job.name] = error.reason


def _check_observers(scheduler: Scheduler) -> None:
    """An engine counts what an observer raises, and goes on; a test that went on would not say why it fails."""
    if scheduler.num_observer_faults:
        events = [*scheduler.step.events, *scheduler._state.events]
        event = next(e for e in events if e["kind"] == "observer_fault")
        raise BatchwrightError(f"{event['hook']} of {event['plugin']!r} raised {event['error']}")
