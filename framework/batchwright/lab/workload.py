"""What is offered to an engine: requests with their arrival times and lengths, but no tokens yet."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from batchwright.errors import WorkloadError
from batchwright.lab.lazy_rows import LazyRows
from batchwright.lab.readers import READERS, Reader, read_file
from batchwright.lab.row import WorkloadRow
from batchwright.lab.synthetic import PREFIX as SYNTHETIC
from batchwright.lab.synthetic import SyntheticSpec
from batchwright.request import SLO

_row_values = attrgetter(*(f.name for f in fields(WorkloadRow) if f.name not in ("prompt", "place")))


@dataclass(frozen=True)
class Workload:
    """A sequence of requests to offer, in order of arrival.

    Attributes:
        name: short, for tables: the file's name, or the synthetic specification.
        rows: in order of arrival; requests that arrive together keep the order of the file. Lazy ones are read again
            whenever they are iterated.
        source: where it comes from: the path as given, or the synthetic specification.
        speedup: what arrival times were already divided by.
    """

    name: str
    rows: tuple[WorkloadRow, ...] | LazyRows
    source: str
    speedup: float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over every field of every row: equal hashes, equal workloads."""
        digest = hashlib.sha256(b"batchwright-workload-1")
        for row in self.rows:
            digest.update(repr(_row_values(row)).encode())
            if row.prompt is not None:
                digest.update(json.dumps(row.prompt, sort_keys=True, default=list).encode())
        return digest.hexdigest()[:16]

    @property
    def span_s(self) -> float:
        """Seconds from the start of the run to the last arrival; 0 when there are no rows."""
        return max((row.arrival_ns for row in self.rows), default=0) / 1e9

    def faster(self, speedup: float) -> Workload:
        """The same requests with arrival times divided by ``speedup``.

        Raises:
            WorkloadError: ``speedup`` is not a finite number above 0.
        """
        if not (math.isfinite(speedup) and speedup > 0):
            raise WorkloadError(
                f"speedup must be a finite number above 0, not {speedup!r}: 2 makes requests come twice as fast"
            )
        if speedup == 1:
            return self
        rows = self._each(lambda row: replace(row, arrival_ns=round(row.arrival_ns / speedup)))
        return replace(self, rows=rows, speedup=self.speedup * speedup)

    def _each(self, change: Callable[[WorkloadRow], WorkloadRow]) -> tuple[WorkloadRow, ...] | LazyRows:
        return self.rows.each(change) if isinstance(self.rows, LazyRows) else tuple(map(change, self.rows))

    def first(self, limit: int) -> Workload:
        """The first ``limit`` requests only.

        Raises:
            WorkloadError: ``limit`` is not a whole number of at least 1.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise WorkloadError(f"limit must be a whole number of at least 1, not {limit!r}")
        if limit >= len(self.rows):
            return self
        return replace(self, rows=self.rows.first(limit) if isinstance(self.rows, LazyRows) else self.rows[:limit])

    def with_slo(self, slo: SLO) -> Workload:
        """The same requests; those without objectives of their own get these."""
        return replace(self, rows=self._each(lambda row: row if row.slo is not None else replace(row, slo=slo)))


def load_workload(
    spec: str | Path,
    *,
    speedup: float = 1.0,
    limit: int | None = None,
    slo: SLO | None = None,
    readers: Mapping[str, Reader] | None = None,
    lazy: bool = False,
) -> Workload:
    """Read a trace, or draw a synthetic workload.

    A file's format is found by its content, not its name: an Azure LLM trace (CSV), a Mooncake trace (JSONL), or plain
    JSONL (see :mod:`batchwright.lab.readers`). ``synthetic:rate=4,n=100,...`` draws one (see
    :class:`~batchwright.lab.synthetic.SyntheticSpec`).

    Args:
        spec: a path, or ``synthetic:...``.
        speedup: arrival times are divided by it; deadlines, which count from arrival, are not.
        limit: take the first so many requests only.
        slo: objectives of the requests that bring none.
        readers: further file formats by name, tried before the built-in ones.
        lazy: read the rows whenever they are needed, instead of holding all of them: for files of millions. Such a file
            must be in order of arrival. (An Azure trace is held while it is read, since its times count from its
            earliest row.)

    Raises:
        WorkloadError: there is no such file, its format is unknown, a row is broken (the message gives file, line and
            row, what was found and what was expected), or ``speedup``, ``limit`` or the specification is out of range.
    """
    text = str(spec)
    if text.startswith(SYNTHETIC):
        spec_ = SyntheticSpec.parse(text)
        drawn = LazyRows(spec_.draw, spec_.n) if lazy else tuple(spec_.draw())
        workload = Workload(name=text, rows=drawn, source=text)
    else:
        path, formats = Path(spec), {**(readers or {}), **READERS}
        rows: tuple[WorkloadRow, ...] | LazyRows
        if lazy:
            rows = LazyRows(lambda: read_file(path, formats))
        else:
            rows = tuple(sorted(read_file(path, formats), key=attrgetter("arrival_ns")))
        workload = Workload(name=path.name, rows=rows, source=text)
    if limit is not None:
        workload = workload.first(limit)
    if slo is not None:
        workload = workload.with_slo(slo)
    return workload.faster(speedup)
