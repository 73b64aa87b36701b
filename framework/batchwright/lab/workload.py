"""What is offered to an engine: requests with their arrival times and lengths, but no tokens yet."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from batchwright.errors import WorkloadError
from batchwright.lab.lazy_rows import LazyRows
from batchwright.lab.links import arranged, without_strangers
from batchwright.lab.row import WorkloadRow, fields_in_hash
from batchwright.request import SLO

REFUSE, CLIP, DROP = "refuse", "clip", "drop"
TOO_LONG = (REFUSE, CLIP, DROP)
"""What becomes of prompts that leave no room for an output."""

_ALWAYS, _UNLESS_DEFAULT = fields_in_hash()
_always = attrgetter(*_ALWAYS)
_unless_default = attrgetter(*(name for name, _ in _UNLESS_DEFAULT))
_DEFAULTS = tuple(default for _, default in _UNLESS_DEFAULT)


@dataclass(frozen=True)
class Workload:
    """A sequence of requests to offer, in order of arrival.

    Attributes:
        name: short, for tables: the file's name, or the synthetic specification.
        rows: in order of arrival; requests that arrive together keep the order of the file. Lazy ones are read again
            whenever they are iterated.
        source: where it comes from: the path as given, or the synthetic specification.
        speedup: what arrival times were already divided by.
        concurrency: of a closed loop, how many users there are; None: an open loop.
        too_long: what becomes of prompts that leave no room for an output: ``refuse`` (the engine says no), ``clip`` or
            ``drop``.
        notes: what a reader of results should know of it, in sentences, such as rows that were left out.

    Raises:
        WorkloadError: ``concurrency`` or ``too_long`` is out of its range.
    """

    name: str
    rows: tuple[WorkloadRow, ...] | LazyRows
    source: str
    speedup: float = 1.0
    concurrency: int | None = None
    too_long: str = REFUSE
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            _check_whole("concurrency", self.concurrency)
        if self.too_long not in TOO_LONG:
            raise WorkloadError(f"too_long is {self.too_long!r}; expected one of {', '.join(TOO_LONG)}")

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over every field of every row, and how they are offered: equal hashes, equal workloads."""
        digest = hashlib.sha256(b"batchwright-workload-1")
        if self.concurrency is not None or self.too_long != REFUSE:
            digest.update(repr((self.concurrency, self.too_long)).encode())
        for row in self.rows:
            digest.update(repr(_always(row)).encode())
            if (values := _unless_default(row)) != _DEFAULTS:
                digest.update(repr(values).encode())
            if row.prompt is not None:
                digest.update(json.dumps(row.prompt, sort_keys=True, default=list).encode())
        return digest.hexdigest()[:16]

    @property
    def arrivals(self) -> str:
        """When requests are offered: ``open`` (at their times), ``chained`` (at their times, and some when others have
        ended) or ``closed`` (when others have ended).
        """
        if self.concurrency is not None:
            return "closed"
        return "chained" if isinstance(self.rows, tuple) and any(row.after for row in self.rows) else "open"

    @property
    def span_s(self) -> float:
        """Seconds from the start of the run to the last arrival; 0 when there are no rows."""
        return max((row.arrival_ns for row in self.rows), default=0) / 1e9

    @property
    def rate(self) -> float:
        """Arrivals a second, of rows that wait for nobody: how many there are, over the last one's time."""
        num, last = 0, 0
        for row in self.rows:
            if not row.after:
                num, last = num + 1, max(last, row.arrival_ns)
        return num / (last / 1e9) if last else math.inf

    def faster(self, speedup: float) -> Workload:
        """The same requests with arrival times divided by ``speedup``; deadlines and think times, which do not count
        from the start, stay.

        Raises:
            WorkloadError: ``speedup`` is not a finite number above 0.
        """
        if not (math.isfinite(speedup) and speedup > 0):
            raise WorkloadError(
                f"speedup must be a finite number above 0, not {speedup!r}: 2 makes requests come twice as fast"
            )
        if speedup == 1:
            return self
        rows = self._each(lambda row: row.at(round(row.arrival_ns / speedup)))
        return replace(self, rows=rows, speedup=self.speedup * speedup)

    def at_rate(self, rate: float) -> Workload:
        """The same requests, their times stretched so that :attr:`rate` is this many a second.

        Raises:
            WorkloadError: ``rate`` is not a finite number above 0, or all arrive at once, so that there is nothing to
                stretch.
        """
        if not (math.isfinite(rate) and rate > 0):
            raise WorkloadError(f"rate must be a finite number above 0, not {rate!r}")
        if not math.isfinite(self.rate):
            raise WorkloadError(
                f"workload {self.name!r} has no times to stretch: all its requests arrive at once; give it arrivals, "
                "such as rate=4,burstiness=1"
            )
        return self.faster(rate / self.rate)

    def _each(self, change: Callable[[WorkloadRow], WorkloadRow]) -> tuple[WorkloadRow, ...] | LazyRows:
        return self.rows.each(change) if isinstance(self.rows, LazyRows) else tuple(map(change, self.rows))

    def first(self, limit: int) -> Workload:
        """The first ``limit`` requests only.

        Raises:
            WorkloadError: ``limit`` is not a whole number of at least 1.
        """
        _check_whole("limit", limit)
        if limit >= len(self.rows):
            return self
        return replace(self, rows=self.rows.first(limit) if isinstance(self.rows, LazyRows) else self.rows[:limit])

    def from_row(self, skip: int) -> Workload:
        """Without the first ``skip`` requests; times count from the first that is left, and who waited for one that is
        not waits no longer.

        Raises:
            WorkloadError: ``skip`` is not a whole number of at least 0, or nothing would be left.
        """
        _check_whole("skip", skip, 0)
        if skip >= len(self.rows):
            raise WorkloadError(f"workload {self.name!r} has {len(self.rows)} requests: skip {skip} leaves none")
        return self if not skip else self._cut(self.held()[skip:])

    def window(self, from_s: float, until_s: float) -> Workload:
        """The requests that arrive in ``[from_s, until_s)``; times count from ``from_s``.

        Who waited for one that is not among them waits no longer.

        Raises:
            WorkloadError: it is no window, or nobody arrives in it.
        """
        if not 0 <= from_s < until_s:
            raise WorkloadError(
                f"a window is FROM:UNTIL in seconds, with 0 <= FROM < UNTIL, not {from_s:g}:{until_s:g}"
            )
        since = round(from_s * 1e9)
        rows = [r for r in self.held() if since <= r.arrival_ns < until_s * 1e9]
        if not rows:
            raise WorkloadError(
                f"nobody of workload {self.name!r} arrives from {from_s:g} to {until_s:g} s; its last request arrives "
                f"at {self.span_s:g} s"
            )
        return self._cut(rows, since)

    def _cut(self, rows: tuple[WorkloadRow, ...] | list[WorkloadRow], since: int | None = None) -> Workload:
        since = rows[0].arrival_ns if since is None else since
        kept = without_strangers(row.at(row.arrival_ns - since) for row in rows)
        return replace(self, rows=kept)

    def held(self) -> tuple[WorkloadRow, ...]:
        """Its rows, in memory."""
        return self.rows if isinstance(self.rows, tuple) else tuple(self.rows)

    def with_rows(self, rows: Iterator[WorkloadRow] | list[WorkloadRow] | tuple[WorkloadRow, ...]) -> Workload:
        """With other rows, put in order of arrival.

        Raises:
            WorkloadError: rows that wait for others do not fit together.
        """
        return replace(self, rows=arranged(rows))

    def with_slo(self, slo: SLO) -> Workload:
        """The same requests; those without objectives of their own get these."""
        return replace(self, rows=self._each(lambda row: row if row.slo is not None else replace(row, slo=slo)))

    def closed(self, concurrency: int, think_s: float | None = None) -> Workload:
        """The same requests, offered by so many users in a closed loop: each offers the next when its last has ended.

        Args:
            concurrency: users; rows that wait for each other, such as the turns of a session, are one user's.
            think_s: seconds between the end of one and the next, for rows that do not say; None leaves these at 0.

        Raises:
            WorkloadError: a number is out of its range.
        """
        rows = self.rows
        if think_s:
            rows = self._each(lambda row: row if row.think_s else replace(row, think_s=think_s))
        return replace(self, rows=rows, concurrency=concurrency)


def _check_whole(name: str, value: int, low: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise WorkloadError(f"{name} must be a whole number of at least {low}, not {value!r}")
