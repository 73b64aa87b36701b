"""What is drawn of a request: its phases, by what they are drawn as."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchwright.lab.phases import phases
from batchwright.lab.records import RequestRecord

Stretch = tuple[int, int]

_DRAWN_AS = {"recompute": "prefill", "preempted": "evicted"}


@dataclass(slots=True)
class Phases:
    """Stretches of time of one request, in nanoseconds; each a list of (begin, end).

    Attributes:
        waiting: from arrival to the first step that ran it; of a server elsewhere to the first token.
        prefill: from there, and from each time it was admitted again, to its next token.
        decode: from that token on, until it is evicted or ends.
        evicted: from each eviction until it is admitted again.
    """

    waiting: list[Stretch] = field(default_factory=list)
    prefill: list[Stretch] = field(default_factory=list)
    decode: list[Stretch] = field(default_factory=list)
    evicted: list[Stretch] = field(default_factory=list)


def phases_of(record: RequestRecord, run_end_ns: int) -> Phases:
    """The phases of a request: of one that did not end to the end of the run, and of one that was refused none."""
    found = Phases()
    if record.status != "refused":
        for name, begin, end in phases(record, run_end_ns if record.finish_ns is None else record.finish_ns):
            getattr(found, _DRAWN_AS.get(name, name)).append((begin, end))
    return found
