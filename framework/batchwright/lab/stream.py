"""Records on disk as they come, so that a run takes memory for the requests in flight and not for those that ended.

A file of JSON lines: a header; ``offered``, ``request`` (what became of it, when it ends), ``steps`` and ``event`` as
they come; and ``end``. :func:`read_run` makes of it the record that the same run gives in memory.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TextIO

from batchwright.errors import WorkloadError
from batchwright.lab.records import OfferedRecord, RequestRecord
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.step_records import FIELDS, StepRecords
from batchwright.request import SLO
from batchwright.version import RECORD_VERSION

_OFFERED = tuple(OfferedRecord.__slots__)
_TIMES = ("preempted_ns", "resumed_ns")
_REQUEST = tuple(name for name in RequestRecord.__slots__ if name not in ("slo", "token_times_ns", *_TIMES))


@dataclass
class RecordStream:
    """Writes the records of one run to an open file.

    Attributes:
        num_requests: written requests by status.
        num_steps: written steps.
    """

    file: TextIO
    num_requests: Counter[str] = field(default_factory=Counter)
    num_steps: int = 0

    def header(self, values: Mapping[str, Any]) -> None:
        """What is known before the run: fields of :class:`RunRecord`."""
        fields_of = {"step_fields": FIELDS, "request_fields": _REQUEST}
        self._write({"record_version": RECORD_VERSION, **fields_of, **values})

    def offered(self, record: OfferedRecord) -> None:
        """A request is offered."""
        self._write({"offered": [getattr(record, name) for name in _OFFERED]})

    def request(self, place: int, record: RequestRecord) -> None:
        """What became of a request; ``place`` is that of its row in the workload."""
        times = record.token_times_ns
        gaps = [times[0], *(b - a for a, b in pairwise(times))] if times else []
        slo = None if record.slo is None else [record.slo.ttft_s, record.slo.tpot_s]
        evictions = [getattr(record, name).tolist() for name in _TIMES]
        self._write({"request": [place, gaps, slo, *evictions, *(getattr(record, name) for name in _REQUEST)]})
        self.num_requests[record.status] += 1

    def steps(self, numbers: array[int], batches: array[int]) -> None:
        """Some more steps, as :meth:`StepRecords.take` gives them, and fingerprints of their batches."""
        self._write({"steps": numbers.tolist(), "batches": batches.tolist()})
        self.num_steps += len(batches)

    def events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """What detectors reported."""
        for event in events:
            self._write({"event": event})

    def end(self, values: Mapping[str, Any]) -> None:
        """What is known after the run."""
        self._write({"end": values})

    def _write(self, value: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(value, separators=(",", ":"), allow_nan=False))
        self.file.write("\n")


def read_run(path: Path) -> RunRecord:
    """The record of a run that was streamed to a file, in memory.

    Raises:
        WorkloadError: there is no such file, it is no stream of this version, or the run did not come to its end.
    """
    offered: list[OfferedRecord] = []
    requests: dict[int, RequestRecord] = {}
    steps, batches = StepRecords(), array("Q")
    events: list[dict[str, Any]] = []
    head: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    names: Sequence[str] | None = None
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                value = json.loads(line)
                if head is None:
                    head = _checked(path, value)
                    names = head.pop("request_fields", None)
                elif "offered" in value:
                    offered.append(OfferedRecord(*value["offered"]))
                elif "request" in value:
                    place, record = _request(value["request"], names)
                    requests[place] = record
                elif "steps" in value:
                    steps.extend_numbers(value["steps"])
                    batches.extend(value["batches"])
                elif "event" in value:
                    events.append(value["event"])
                else:
                    end = value["end"]
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise WorkloadError(f"{path}, line {number}: not a line of a streamed run: {error!r}") from None
    if head is None or end is None:
        raise WorkloadError(f"{path} has no end: that run was cut off; run it again")
    limits = RunLimits(**head.pop("limits"))
    in_order = [requests[place] for place in sorted(requests)]
    asked = {record.request_id: record for record in offered}
    return RunRecord(
        **head,
        **end,
        limits=limits,
        offered=[asked[record.request_id] for record in in_order],
        requests=in_order,
        steps=steps,
        batches=batches,
        events=events,
    )


def _checked(path: Path, head: Any) -> dict[str, Any]:
    version = head.pop("record_version", None) if isinstance(head, dict) else None
    if version == RECORD_VERSION and head.pop("step_fields", None) != list(FIELDS):
        raise WorkloadError(
            f"{path} holds other fields of a step than this Batchwright reads: {', '.join(FIELDS)}; read it with the "
            "release that wrote it, or run the experiment again"
        )
    if version != RECORD_VERSION:
        raise WorkloadError(
            f"{path} begins with record_version {version!r}; this Batchwright reads streamed runs of {RECORD_VERSION}: "
            "read it with the release that wrote it, or run the experiment again"
        )
    return dict(head)


def _request(values: Sequence[Any], names: Sequence[str] | None) -> tuple[int, RequestRecord]:
    place, gaps, slo, preempted, resumed, *rest = values
    # Files of before their header had the names hold the first ones: fields that came later have their defaults.
    named = dict(zip(names if names is not None else _REQUEST[: len(rest)], rest, strict=True))
    named |= {name: array("q", when) for name, when in zip(_TIMES, (preempted, resumed), strict=True)}
    times = array("q", accumulate(gaps))
    return place, RequestRecord(token_times_ns=times, slo=None if slo is None else SLO(*slo), **named)
