"""Recordings of traffic that servers wrote: a folder of parts, of which each is JSON lines, gzipped.

A part begins with its head; then come ``request`` (one that has ended, and all that is known of it), ``steps``, and
``dropped`` (how many requests the disk was too slow for). Prompts are lengths and salted hashes of their blocks.
"""

from __future__ import annotations

import gzip
import json
import os.path
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from batchwright.errors import WorkloadError
from batchwright.lab.readers.reader import RowFields
from batchwright.lab.readers.recorded_fields import checked_fields
from batchwright.lab.records import RequestRecord, Status
from batchwright.lab.row import WorkloadRow
from batchwright.request import SLO, Request

FORMAT = "batchwright-traffic-1"
SUFFIX = ".traffic.jsonl.gz"
DESCRIPTION = f"a folder of traffic recorded inside vLLM (*{SUFFIX})"


def is_recording(path: Path) -> bool:
    """Whether this is a folder, or a part of a recording."""
    return os.path.isdir(path) or path.name.endswith(SUFFIX)  # it raises of no name


@dataclass(slots=True)
class RecordedRequest:
    """One request of a recording; times are in nanoseconds from the start of the recording.

    Attributes:
        number: of the request in its recording, from 1, in the order in which they ended.
        arrival_ns: when the scheduler got it.
        num_prompt_tokens, num_output_tokens: lengths; the second as far as it came.
        max_tokens: most output tokens that it asked for; None: it said nothing.
        prefix_ids: salted hashes of the blocks of its prompt.
        status, finish_reason: what became of it, as of :class:`~batchwright.lab.records.RequestRecord`.
        first_scheduled_ns, finish_ns: as there.
        token_gaps_ns: from its arrival to its first token, and between any two tokens.
        num_cached_tokens, num_recomputed_tokens, num_preemptions, preempted_ns, resumed_ns: as there.
        client_id, priority, weight, slo_class, slo, deadline_s, predicted_output_tokens: what policies were told of it;
            the deadline in seconds from its arrival.
        session_id, program_id: salted hashes of these.
    """

    number: int
    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int | None
    status: Status
    prefix_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    first_scheduled_ns: int | None = None
    finish_ns: int | None = None
    token_gaps_ns: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    preempted_ns: list[int] = field(default_factory=list)
    resumed_ns: list[int] = field(default_factory=list)
    client_id: str | None = None
    priority: int = 0
    weight: float = 1.0
    slo_class: str | None = None
    slo: list[float | None] | None = None
    deadline_s: float | None = None
    predicted_output_tokens: int | None = None
    session_id: str | None = None
    program_id: str | None = None

    @classmethod
    def of(
        cls,
        record: RequestRecord,
        said: Request | None,
        *,
        number: int,
        max_tokens: int | None,
        prefix_ids: list[int],
        name_of: Callable[[str | None], str | None],
    ) -> RecordedRequest:
        """From a record, and what policies were told.

        Args:
            record: with times from the start of the recording.
            said: the request as policies see it, where they do.
            number, max_tokens, prefix_ids: as of the class.
            name_of: what stands in the place of names of sessions and programs.
        """
        times = record.token_times_ns
        found = cls(
            number=number,
            arrival_ns=record.arrival_ns,
            num_prompt_tokens=record.num_prompt_tokens,
            num_output_tokens=record.num_output_tokens,
            max_tokens=max_tokens,
            status=record.status,
            prefix_ids=prefix_ids,
            finish_reason=record.finish_reason,
            first_scheduled_ns=record.first_scheduled_ns,
            finish_ns=record.finish_ns,
            token_gaps_ns=[times[0] - record.arrival_ns, *(b - a for a, b in pairwise(times))] if times else [],
            num_cached_tokens=record.num_cached_tokens,
            num_recomputed_tokens=record.num_recomputed_tokens,
            num_preemptions=record.num_preemptions,
            preempted_ns=record.preempted_ns.tolist(),
            resumed_ns=record.resumed_ns.tolist(),
            priority=record.priority,
        )
        if said is not None:
            found.client_id, found.priority, found.weight = said.client_id, said.priority, said.weight
            found.predicted_output_tokens = said.predicted_output_tokens
            found.session_id, found.program_id = name_of(said.session_id), name_of(said.program_id)
            if said.deadline_s is not None:
                found.deadline_s = said.deadline_s - said.arrival_ns / 1e9
            if said.slo is not None:
                found.slo = [said.slo.ttft_s, said.slo.tpot_s]
            slo_class = said.extra.get("slo_class")
            found.slo_class = None if slo_class is None else str(slo_class)
        return found

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without what is as it would be anyhow."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}

    def row(self, start_ns: int, prefix_block_size: int, place: str) -> WorkloadRow | str:
        """As a request to offer; or why it is none.

        It puts out as many tokens as it did, whatever ended it; one whose client left before the first token leaves as
        soon again.

        Args:
            start_ns: of the recording.
            prefix_block_size: tokens of a block.
            place: where it stands, for errors.
        """
        if self.status not in ("finished", "aborted"):
            return "had not ended" if self.status == "unfinished" else "were refused or failed"
        length, leaves = self.num_output_tokens, None
        if not length:
            if self.finish_ns is None or self.status == "finished":
                return "put out nothing"
            length, leaves = self.max_tokens or 1, max(self.finish_ns - self.arrival_ns, 1) / 1e9
        return WorkloadRow(
            arrival_ns=start_ns + self.arrival_ns,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=length,
            max_tokens=self.max_tokens,
            prefix_ids=tuple(self.prefix_ids),
            prefix_block_size=prefix_block_size if self.prefix_ids else 0,
            priority=self.priority,
            client_id=self.client_id,
            weight=self.weight,
            deadline_s=self.deadline_s,
            slo=None if self.slo is None else SLO(*self.slo),
            predicted_output_tokens=self.predicted_output_tokens,
            session_id=self.session_id,
            program_id=self.program_id,
            slo_class=self.slo_class,
            abort_after_s=leaves,
            place=place,
        )

    def record(self) -> RequestRecord:
        """As a record of a run."""
        return RequestRecord(
            request_id=f"r{self.number:06d}",
            client_id=self.client_id,
            priority=self.priority,
            arrival_ns=self.arrival_ns,
            first_scheduled_ns=self.first_scheduled_ns,
            token_times_ns=array("q", list(accumulate(self.token_gaps_ns, initial=self.arrival_ns))[1:]),
            finish_ns=self.finish_ns,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_preemptions=self.num_preemptions,
            slo=None if self.slo is None else SLO(*self.slo),
            status=self.status,
            finish_reason=self.finish_reason,
            weight=self.weight,
            slo_class=self.slo_class,
            preempted_ns=array("q", self.preempted_ns),
            resumed_ns=array("q", self.resumed_ns),
            session_id=self.session_id,
            program_id=self.program_id,
        )


_DEFAULTS: dict[str, Any] = {
    f.name: f.default_factory() if callable(f.default_factory) else f.default
    for f in fields(RecordedRequest)
    if f.default is not MISSING or f.default_factory is not MISSING
}


@dataclass
class RecordedTraffic:
    """A recording: a folder of parts, or one part.

    Attributes:
        path: where it is.
        skip_bad_rows: pass over rows that are broken, instead of ending with the first.
        num_left_out: after reading: requests that are none to offer, by why.
        bad_rows: after reading: what is wrong with those that were passed over.
        num_dropped: after reading: requests that the disk was too slow for.
        num_unfit: after reading: requests that could not be written, for what was said of them.
        cut_off: after reading: parts that end in the middle.
    """

    path: Path
    skip_bad_rows: bool = False
    num_left_out: Counter[str] = field(default_factory=Counter)
    bad_rows: list[str] = field(default_factory=list)
    num_dropped: int = 0
    num_unfit: int = 0
    cut_off: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[WorkloadRow]:
        """Its requests; times count from the earliest arrival.

        Raises:
            WorkloadError: there is no recording, a part cannot be read, or a row is broken.
        """
        found: list[WorkloadRow] = []
        for head, fields_, request in self.requests():
            try:
                row = request.row(head["start_unix_ns"], head["prefix_block_size"], fields_.place)
            except WorkloadError as error:
                self._bad(WorkloadError(f"{fields_.place}: {error}"))
                continue
            if isinstance(row, str):
                self.num_left_out[row] += 1
            else:
                found.append(row)
        if not found:
            why = f": {'; '.join(self.notes)}" if self.notes else ""
            raise WorkloadError(f"{self.path} has no request that could be offered{why}")
        start = min(row.arrival_ns for row in found)
        yield from (row.later(-start) for row in found)

    def requests(self) -> Iterator[tuple[Mapping[str, Any], RowFields, RecordedRequest]]:
        """Each request, with the head of its part and where it stands.

        Raises:
            WorkloadError: see ``rows``.
        """
        self.num_left_out.clear()
        self.bad_rows.clear()
        self.cut_off.clear()
        self.num_dropped = self.num_unfit = 0
        for head, fields_ in self.lines():
            if "dropped" in fields_.values:
                self.num_dropped += fields_.whole("dropped", 0)
            elif "unfit" in fields_.values:
                self.num_unfit += fields_.whole("unfit", 0)
            elif "request" in fields_.values:
                try:
                    request = RecordedRequest(**checked_fields(fields_))
                except WorkloadError as error:
                    self._bad(error)
                else:
                    yield head, fields_, request

    def lines(self) -> Iterator[tuple[Mapping[str, Any], RowFields]]:
        """Each line behind a head, with that head.

        Raises:
            WorkloadError: there is no recording, or a part cannot be read.
        """
        parts = sorted(self.path.glob(f"*{SUFFIX}")) if self.path.is_dir() else [self.path]
        if not parts:
            raise WorkloadError(
                f"{self.path} is a folder without a recording of traffic (*{SUFFIX}); vLLM writes one with "
                '--additional-config \'{"batchwright": {"record": "FOLDER", ...}}\''
            )
        for part in parts:
            yield from self._lines_of(part)

    def _lines_of(self, part: Path) -> Iterator[tuple[Mapping[str, Any], RowFields]]:
        head: dict[str, Any] | None = None
        number = 0
        try:
            with gzip.open(part, "rt", encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    fields_ = RowFields(part, number, number - 1, {})
                    try:
                        values = json.loads(line)
                    except json.JSONDecodeError as error:
                        fields_.fail(f"not JSON ({error.msg})", "one JSON object a line")
                    if not isinstance(values, dict):
                        fields_.fail(f"a JSON {type(values).__name__}", "one JSON object a line")
                    fields_.values = values
                    if head is None:
                        head = _head(fields_)
                    else:
                        yield head, fields_
        except (EOFError, zlib.error):  # the server was killed, or writes still
            self.cut_off.append(part.name)
        except UnicodeDecodeError:
            raise WorkloadError(f"{part} is no recording of traffic: it does not hold text") from None
        except OSError as error:
            raise WorkloadError(f"cannot read {part}: {error.strerror or error}") from None

    def _bad(self, error: WorkloadError) -> None:
        if not self.skip_bad_rows:
            raise error
        self.bad_rows.append(str(error))

    @property
    def notes(self) -> tuple[str, ...]:
        """After reading: what was left out, in sentences."""
        name = self.path.name
        found = [f"{name}: {num:,} requests {why}: left out" for why, num in self.num_left_out.items()]
        if self.num_dropped:
            found.append(f"{name}: {self.num_dropped:,} further requests were not recorded: the disk was too slow")
        if self.num_unfit:
            why = "what was said of them could not be written"
            found.append(f"{name}: {self.num_unfit:,} further requests were not recorded: {why}")
        if self.cut_off:
            found.append(f"{name}: {', '.join(self.cut_off)} was not closed: its last seconds may be missing")
        if self.bad_rows:
            found.append(f"{name}: {len(self.bad_rows):,} broken rows were skipped: {'; '.join(self.bad_rows[:3])}")
        return tuple(found)


def _head(fields_: RowFields) -> dict[str, Any]:
    if fields_.values.get("format") != FORMAT:
        fields_.fail(f"format is {fields_.values.get('format')!r}", f"the head of a recording of traffic, {FORMAT!r}")
    fields_.whole("start_unix_ns", 0)
    fields_.whole("prefix_block_size", 1)
    return dict(fields_.values)
