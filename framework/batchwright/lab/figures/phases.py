"""What a request did when, from its record."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import zip_longest

from batchwright.lab.records import RequestRecord

Stretch = tuple[int, int]


@dataclass(slots=True)
class Phases:
    """Stretches of time of one request, in nanoseconds; each a list of (begin, end).

    Attributes:
        waiting: from arrival to the first step that ran it.
        prefill: from there, and from each time it was admitted again, to its next token.
        decode: from that token on, until it is evicted or ends.
        evicted: from each eviction until it is admitted again.
    """

    waiting: list[Stretch] = field(default_factory=list)
    prefill: list[Stretch] = field(default_factory=list)
    decode: list[Stretch] = field(default_factory=list)
    evicted: list[Stretch] = field(default_factory=list)


def phases_of(record: RequestRecord, run_end_ns: int) -> Phases:
    """The phases of a request; one that did not end goes on to the end of the run."""
    phases = Phases()
    end = run_end_ns if record.finish_ns is None else record.finish_ns
    if record.status == "refused":
        end = record.arrival_ns
    begun = record.first_scheduled_ns
    _add(phases.waiting, record.arrival_ns, end if begun is None else begun)
    if begun is None:
        return phases
    for out, back in zip_longest(record.preempted_ns, record.resumed_ns, fillvalue=end):
        _add_resident(phases, record, begun, out)
        _add(phases.evicted, out, back)
        begun = back
    _add_resident(phases, record, begun, end)
    return phases


def _add_resident(phases: Phases, record: RequestRecord, begin: int, end: int) -> None:
    times = record.token_times_ns
    place = bisect_right(times, begin)
    token = min(times[place], end) if place < len(times) else end
    _add(phases.prefill, begin, token)
    _add(phases.decode, token, end)


def _add(stretches: list[Stretch], begin: int, end: int) -> None:
    if end > begin:
        stretches.append((begin, end))
