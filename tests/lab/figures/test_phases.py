"""Phases of a request."""

from __future__ import annotations

from array import array

import pytest

from batchwright.lab.figures.phases import Phases, phases_of
from lab.hand import MS, request


def ms(phases: Phases) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(a / MS, b / MS) for a, b in getattr(phases, name)]
        for name in ("waiting", "prefill", "decode", "evicted")
    }


def test_a_plain_request() -> None:
    record = request(arrival_ms=10, times_ms=[50, 60, 70], first_scheduled_ns=30 * MS)
    assert ms(phases_of(record, 100 * MS)) == {
        "waiting": [(10, 30)],
        "prefill": [(30, 50)],
        "decode": [(50, 70)],
        "evicted": [],
    }


def test_evicted_in_decode_and_before_its_first_token() -> None:
    record = request(
        arrival_ms=0,
        times_ms=[40, 50, 90, 100],
        first_scheduled_ns=10 * MS,
        num_preemptions=2,
        preempted_ns=array("q", [20 * MS, 50 * MS]),
        resumed_ns=array("q", [30 * MS, 70 * MS]),
    )
    assert ms(phases_of(record, 200 * MS)) == {
        "waiting": [(0, 10)],
        "prefill": [(10, 20), (30, 40), (70, 90)],
        "decode": [(40, 50), (90, 100)],
        "evicted": [(20, 30), (50, 70)],
    }


def test_evicted_and_never_back() -> None:
    record = request(
        times_ms=[10, 20],
        first_scheduled_ns=0,
        finish_ns=None,
        status="unfinished",
        num_preemptions=1,
        preempted_ns=array("q", [20 * MS]),
    )
    found = ms(phases_of(record, 60 * MS))
    assert found["decode"] == [(10, 20)]
    assert found["evicted"] == [(20, 60)]


@pytest.mark.parametrize(("status", "waited"), [("refused", []), ("unfinished", [(5, 80)])])
def test_never_run(status: str, waited: list[tuple[float, float]]) -> None:
    found = ms(phases_of(request(arrival_ms=5, status=status), 80 * MS))
    assert found == {"waiting": waited, "prefill": [], "decode": [], "evicted": []}


def test_of_a_server_elsewhere_only_tokens_are_known() -> None:
    found = ms(phases_of(request(times_ms=[40, 50, 70], first_scheduled_ns=None), 200 * MS))
    assert found == {"waiting": [(0, 40)], "prefill": [], "decode": [(40, 70)], "evicted": []}


def test_evicted_in_the_step_that_admitted_it_is_waiting_and_nothing_beside() -> None:
    record = request(
        arrival_ms=0,
        times_ms=[40],
        first_scheduled_ns=20 * MS,
        num_preemptions=1,
        preempted_ns=array("q", [10 * MS]),
        resumed_ns=array("q", [20 * MS]),
    )
    assert ms(phases_of(record, 50 * MS)) == {"waiting": [(0, 20)], "prefill": [(20, 40)], "decode": [], "evicted": []}
