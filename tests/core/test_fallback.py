"""Who builds a step in the place of a policy that broke a rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import ConfigError, Policy, Step, hookimpl
from toolbox import check_whole, make_engine, make_request, play


class Raises(Policy):
    """It raises in every step from the second on, and in the first lets one request in."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        if step.index == 0:
            yield step.waiting[0]
            return
        yield from step.waiting
        raise RuntimeError("on purpose")


def batches(fallback: Any) -> list[list[str]]:
    """Who ran in each of the first steps: ``a`` is resident, and then come others with priorities."""
    seen: list[list[str]] = []

    class Tape:
        @hookimpl
        def step_finished(self, step: Step) -> None:
            seen.append([r.request_id for r in step.batch])

    engine, tape = make_engine(Raises(), T=12, on_policy_error="fallback", fallback_policy=fallback, plugins=[Tape()])
    later = [make_request(name, 8, 6, priority=priority) for name, priority in (("b", 2), ("c", 1), ("d", 0))]
    play(engine, {0: [make_request("a", 8, 6)], 1: later}, max_steps=100)
    assert set(tape.reasons.values()) == {"length"} and len(tape.reasons) == 4
    assert engine.scheduler.num_policy_faults == len(seen) - 1
    check_whole(engine.scheduler)
    return seen


def test_it_is_the_default_policy_unless_another_is_named() -> None:
    """Prompts first; residents first, in order of arrival; residents first, in order of priority."""
    assert batches(None)[1:3] == [["b"], ["c"]]
    assert batches("prefill_first") == batches(None)
    assert batches("vllm_v1")[1:3] == [["a", "b", "c"], ["a", "b", "c", "d"]]
    assert batches({"use": "vllm_v1", "scheduling_policy": "priority"})[1:3] == [["a", "d", "c"], ["a", "d", "c", "b"]]


class Learns(Policy):
    """Knows only whom it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.here: list[Any] = []
        self.started: list[int] = []

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        self.here = [*step.running, *step.waiting]

    @hookimpl
    def step_started(self, step: Step) -> None:
        self.started.append(step.index)

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        assert self.started[-1] == step.index
        yield from self.here


def test_it_is_told_who_is_here_and_that_the_step_began() -> None:
    from batchwright.scheduler import Scheduler

    learns = Learns()
    scheduler = Scheduler(Raises(), num_blocks=64, block_size=4, on_policy_error="fallback", fallback_policy=learns)
    for name in "ab":
        scheduler.add(make_request(name, 4, 3))
    for now in range(4):
        batch = scheduler.schedule(now)
        scheduler.update(batch, [1] * int(batch.samples.sum()), now)
    assert learns.started == [1, 2, 3] and not scheduler.has_unfinished()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("orca", "fallback_policy: 'orca' cannot take the place of any other, since it cuts no prompts"),
        ("slo_chunk", "fallback_policy: 'slo_chunk' cannot .* since it needs step times in advance"),
        ("vtcc", "did you mean 'vtc'"),
    ],
)
def test_one_that_cannot_always_build_a_step_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_engine(on_policy_error="fallback", fallback_policy=name)
