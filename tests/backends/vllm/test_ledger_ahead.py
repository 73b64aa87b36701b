"""A ledger of steps of which one is scheduled while the one before it runs; vLLM is not needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.lab.records import RequestRecord
from batchwright_backends.vllm import ledger as module
from batchwright_backends.vllm.ledger import Entry, Ledger, Numbers

SCHEDULER = SimpleNamespace(get_request_counts=lambda: (2, 0), get_kv_cache_usage=lambda: 0.5)


class Kept(Ledger):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        super().__init__(1000, 8)
        self.over: list[RequestRecord] = []
        self.steps: list[Numbers] = []

    def begin(self, request: Any, now_ns: int) -> RequestRecord:
        return RequestRecord.begin(request.request_id, now_ns - self.start_ns, 5)

    def ended(self, entry: Entry) -> None:
        self.over.append(entry.record)

    def step(self, numbers: Numbers, fingerprint: int) -> None:
        self.steps.append(numbers)


def told(counts: dict[str, int], new: tuple[str, ...] = ()) -> Any:
    """vLLM's ``SchedulerOutput``, as far as it is read."""
    return SimpleNamespace(
        preempted_req_ids=set(),
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(), req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens=counts,
        scheduled_spec_decode_tokens={},
    )


def gave(*names: str, last: str | None = None) -> list[Any]:
    """vLLM's ``EngineCoreOutputs``: a token each; one of them ends."""
    outputs = [
        SimpleNamespace(request_id=n, new_token_ids=[7], finish_reason="length" if n == last else None) for n in names
    ]
    return [SimpleNamespace(outputs=outputs)]


def begun(*names: str) -> tuple[Kept, Any]:
    ledger = Kept()
    for name in names:
        ledger.arriving(SimpleNamespace(request_id=name), 1000)
    first = told(dict.fromkeys(names, 5), names)
    ledger.scheduled(first, 1010)
    return ledger, first


def test_a_step_begins_when_the_one_before_it_has_ended() -> None:
    """It was scheduled while that ran: the workers had no time for it before."""
    ledger, first = begun("a")
    second, third = told({"a": 1}), told({"a": 1})
    ledger.scheduled(second, 1020)
    ledger.updated(first, gave("a"), 1050, SCHEDULER)
    ledger.updated(second, gave("a"), 1090, SCHEDULER)
    ledger.scheduled(third, 1100)  # nothing ran when it came
    ledger.updated(third, gave("a", last="a"), 1130, SCHEDULER)
    assert [step[1:3] for step in ledger.steps] == [(10, 50), (50, 90), (100, 130)]
    assert [*ledger.over[0].token_times_ns] == [50, 90, 130]


def test_ends_of_steps_that_riders_share_are_kept_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server that serves the same for long would keep each twice."""
    monkeypatch.setattr(module, "_MOST_ENDS", 4)
    ledger, now = begun("a", "b")
    for place in range(30):
        ledger.updated(now, gave("a", "b", last="a" if place == 29 else None), 1050 + 10 * place, SCHEDULER)
        assert len(ledger._ends) < 4
        now = told({"a": 1, "b": 1})
        ledger.scheduled(now, 1050 + 10 * place)
    assert [*ledger.over[0].token_times_ns] == [50 + 10 * place for place in range(30)]
