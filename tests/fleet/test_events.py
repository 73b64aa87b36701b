"""The events of a fleet, in the order of virtual time."""

from __future__ import annotations

from typing import Any

from batchwright import (
    Request,
    hookimpl,
)
from batchwright.fleet.fleet import BEGIN, FINISH
from fleet_toolbox import MS, To, drive, make_fleet
from toolbox import make_request


class Notes:
    """What happened where, in the order in which it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, str]] = []

    @hookimpl
    def step_started(self, step: Any) -> None:
        self.told.append((step.now, "begins", ",".join(r.request_id for r in (*step.running, *step.waiting))))

    @hookimpl
    def step_finished(self, step: Any) -> None:
        self.told.append((step.end, "ends", ",".join(r.request_id for r in step.batch)))


def test_events_happen_in_the_order_of_virtual_time() -> None:
    """Steps of 1 ms: replica 1 begins half a step after replica 0, and both go on in turns."""
    notes = Notes()
    with make_fleet(2, To(), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 3), make_request("1:b", 4, 2, arrival_ns=MS // 2)])
    assert notes.told == [
        (0, "begins", "0:a"),
        (MS // 2, "begins", "1:b"),
        (MS, "ends", "0:a"),
        (MS, "begins", "0:a"),
        (3 * MS // 2, "ends", "1:b"),
        (3 * MS // 2, "begins", "1:b"),
        (2 * MS, "ends", "0:a"),
        (2 * MS, "begins", "0:a"),
        (5 * MS // 2, "ends", "1:b"),
        (3 * MS, "ends", "0:a"),
    ]


def test_of_one_moment_ends_come_first_then_arrivals_then_beginnings() -> None:
    """Two steps end when a request arrives: it is seen after them, and runs in the step that begins then."""
    seen: list[tuple[int, int]] = []

    def look(fleet: Any, request: Request) -> int:
        seen.append((fleet[0].num_running, fleet[1].num_running))
        return 1

    notes = Notes()
    with make_fleet(2, To({"c": look}), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 1), make_request("1:b", 4, 2), make_request("c", 4, 1, arrival_ns=MS)])
    assert seen == [(0, 1)]  # a ended at 1 ms
    at_1_ms = [(what, who) for when, what, who in notes.told if when == MS]
    assert at_1_ms == [("ends", "0:a"), ("ends", "1:b"), ("begins", "1:b,c")]


def test_what_is_routed_during_a_step_waits_until_its_end() -> None:
    notes = Notes()
    with make_fleet(1, To(), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 2), make_request("0:b", 4, 1, arrival_ns=1)])
        assert fleet.num_steps == 2
    assert [who for _, what, who in notes.told if what == "begins"] == ["0:a", "0:a,0:b"]


def test_events_say_what_comes_next() -> None:
    with make_fleet(2, To()) as fleet:
        assert fleet.next_event() is None and not fleet.advance()
        fleet.add_request(make_request("1:a", 4, 1, arrival_ns=MS))
        assert fleet.next_event() == (MS, BEGIN) and fleet.now_ns == MS
        fleet.advance()
        assert fleet.next_event() == (2 * MS, FINISH)
        assert not fleet.replicas[0].has_unfinished() and fleet.has_unfinished()
        fleet.settle()
        assert fleet.next_event() == (2 * MS, BEGIN) and fleet.now_ns == 2 * MS
        assert not fleet.has_unfinished()
        assert fleet.advance() and fleet.next_event() is None
