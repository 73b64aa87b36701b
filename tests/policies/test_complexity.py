"""With 100,000 waiting a step looks at few of them: what it does is counted, not timed.

Counted are the lines of Python that ``schedule`` executes, and the requests that are taken out of the waiting queue's
view (a sort or a copy of it happens in C, and would show as one line). Comparisons in the heap are counted in
``test_lazy_heap.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import Limits, Policy, Scheduler
from batchwright.queues import QueueView
from batchwright.ranked import Ranked
from batchwright.request import Request
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.vllm_v1 import VllmV1
from policies.drive import Job
from policies.suite import WHOLE

SIZES = (1_000, 100_000)
SEATS = 16


def request(k: int) -> Request:
    fields = {
        "priority": k % 7,
        "client_id": f"client{k % 500}",
        "program_id": f"program{k % 700}",
        "predicted_output_tokens": k * 7919 % 400,
        "deadline_s": float(k * 31 % 1000),
    }
    return Job(f"j{k}", [k % 50] * 8, 1000, fields=fields).request()


@pytest.fixture(scope="module")
def schedulers() -> dict[int, Scheduler]:
    """One for each size, for all policies in turn: they are swapped in."""
    made = {}
    for size in SIZES:
        limits = Limits(max_num_seqs=SEATS, max_num_batched_tokens=2048, max_num_residents=SEATS)
        made[size] = Scheduler(
            PrefillFirst(), num_blocks=2000, block_size=16, limits=limits, predict_s=lambda batch: 0.01
        )
        for k in range(size):
            made[size].add(request(k))
    return made


class Counting:
    """Counts lines executed and waiting requests taken from the queue's view."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler) -> None:
        self.count = 0
        waiting, plain = scheduler.waiting, QueueView.__iter__

        def counted(view: QueueView) -> Iterator[Request]:
            for item in plain(view):
                self.count += view is waiting
                yield item

        monkeypatch.setattr(QueueView, "__iter__", counted)

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        self.count += event == "line"
        return self.trace

    def __call__(self, scheduler: Scheduler, now: int) -> int:
        self.count = 0
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            batch = scheduler.schedule(now)
        finally:
            sys.settrace(before)
        scheduler.update(batch, [7] * sum(batch.samples.tolist()), now + 1000)
        return self.count


def counts(monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler, policy: Policy, steps: int = 12) -> list[int]:
    """Of some steps in each of which two residents leave and others come; starts from an empty batch."""
    for resident in list(scheduler.running):
        scheduler.abort(resident.request_id)
    scheduler.swap_policy(policy)
    found = []
    with monkeypatch.context() as patch:
        counting = Counting(patch, scheduler)
        for k in range(steps):
            found.append(counting(scheduler, k * 10**7))
            for resident in list(scheduler.running)[:2]:
                scheduler.abort(resident.request_id)
    return found


CASES = [
    *[pytest.param(policy, {}, id=name) for name, policy in WHOLE.items()],
    pytest.param(VllmV1, {"scheduling_policy": "priority"}, id="vllm_v1 by priority"),
    *[pytest.param(WHOLE[name], {"starve_s": 0.005}, id=f"{name}, all starve") for name in ("mlfq", "plas")],
]


@pytest.mark.parametrize(("policy", "params"), CASES)
def test_a_step_does_not_grow_with_the_queue(
    monkeypatch: pytest.MonkeyPatch, schedulers: dict[int, Scheduler], policy: type[Policy], params: dict[str, Any]
) -> None:
    few, many = (counts(monkeypatch, schedulers[size], policy(**params)) for size in SIZES)
    # log 100,000 / log 1,000 = 5 / 3
    assert sum(many) < 1.6 * sum(few) + 2000 and max(many) < 1.6 * max(few) + 4000, (few, many)


BY_RANK = [name for name, policy in WHOLE.items() if issubclass(policy, Ranked)]
PREEMPTIVE = [name for name in BY_RANK if WHOLE[name].preemptive]
WORSE = {"priority": 5, "deadline_s": 9.0, "predicted_output_tokens": 500}
BETTER = {"priority": 1, "deadline_s": 1.0, "predicted_output_tokens": 5}


def full(policy: Policy, seats: int, waiting: int, **fields: Any) -> Scheduler:
    """So many decodes in as many seats, and others behind them."""
    limits = Limits(max_num_seqs=seats, max_num_batched_tokens=8192, max_num_residents=seats)
    scheduler = Scheduler(policy, num_blocks=4000, block_size=256, limits=limits)
    for k in range(seats):
        scheduler.add(Job(f"r{k}", [k] * 8, 200, fields=WORSE).request())
    for _ in range(5):  # so that levels of service are used up
        batch = scheduler.schedule()
        scheduler.update(batch, [7] * sum(batch.samples.tolist()))
    assert len(batch) == seats
    for k in range(waiting):
        scheduler.add(Job(f"w{k}", [k] * 8, 200, fields=fields | {"client_id": f"c{k}"}).request())
    return scheduler


@pytest.mark.parametrize("name", BY_RANK)
def test_while_nobody_passes_a_step_does_not_grow_with_the_residents(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def count(seats: int) -> int:
        params = {"quantum": 100} if name in ("mlfq", "plas") else {}
        scheduler = full(WHOLE[name](**params), seats, 50, **WORSE)
        with monkeypatch.context() as patch:
            counting = Counting(patch, scheduler)
            return sum([counting(scheduler, 0) for _ in range(8)][4:])  # those who just came are looked at

    few, many = count(8), count(256)
    assert many < 1.5 * few + 300, (few, many)


@pytest.mark.parametrize("name", PREEMPTIVE)
def test_those_who_pass_do_not_each_look_at_all_residents(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def count(seats: int) -> int:
        params = {"quantum": 2} if name in ("mlfq", "plas") else {}
        scheduler = full(WHOLE[name](**params), seats, seats, **BETTER)
        with monkeypatch.context() as patch:
            found = Counting(patch, scheduler)(scheduler, 0)
        assert len(scheduler.step.preempted) == seats
        return found

    few, many = count(8), count(128)
    assert many < 16 * 7 / 3 * few, (few, many)  # log 128 / log 8; each look at all would make it 256 times as many


def test_the_count_would_show_a_sort(monkeypatch: pytest.MonkeyPatch, schedulers: dict[int, Scheduler]) -> None:
    from batchwright import hookimpl

    class Sorts(Policy):
        @hookimpl
        def admission(self, step: Any) -> Iterator[Any]:
            yield step.running
            for one in sorted(step.waiting, key=lambda r: r.priority):
                yield one
                if not one.num_scheduled:
                    return

    assert min(counts(monkeypatch, schedulers[100_000], Sorts(), steps=2)) > 100_000
