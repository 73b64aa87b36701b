"""Readers of trace files, one format a module; a file's format is found by its first line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from batchwright.errors import WorkloadError, did_you_mean
from batchwright.lab.readers.azure import AZURE
from batchwright.lab.readers.bailian import BAILIAN
from batchwright.lab.readers.burstgpt import BURSTGPT
from batchwright.lab.readers.jsonl import JSONL
from batchwright.lab.readers.mooncake import MOONCAKE
from batchwright.lab.readers.reader import LeftOut, Reader
from batchwright.lab.readers.recording import DESCRIPTION as RECORDING
from batchwright.lab.readers.sharegpt import SHAREGPT
from batchwright.lab.row import WorkloadRow

READERS: Mapping[str, Reader] = {
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "bailian": BAILIAN,
    "mooncake": MOONCAKE,
    "sharegpt": SHAREGPT,
    "jsonl": JSONL,
}
"""The built-in formats, in the order in which they are tried."""

__all__ = ["READERS", "LeftOut", "Reader", "TraceFile"]

_SHOWN = 3


@dataclass
class TraceFile:
    """A file of requests.

    Attributes:
        path: where it is.
        readers: formats by name; the first that understands the first line reads the file.
        skip_bad_rows: pass over rows that are broken, instead of ending with the first.
        num_left_out: after reading: rows that are no requests, by why.
        bad_rows: after reading: what is wrong with those that were passed over.
    """

    path: Path
    readers: Mapping[str, Reader] = field(default_factory=lambda: READERS)
    skip_bad_rows: bool = False
    num_left_out: Counter[str] = field(default_factory=Counter)
    bad_rows: list[str] = field(default_factory=list)

    def rows(self, *, in_order: bool = False) -> Iterator[WorkloadRow]:
        """The rows, in the order of the file, as they are asked for.

        Args:
            in_order: they are said to be in order of arrival: times that count from the earliest count from the first.

        Raises:
            WorkloadError: the file is absent, empty, not text, in no known format, or has a broken row.
        """
        self.num_left_out.clear()
        self.bad_rows.clear()
        try:
            # utf-8-sig: spreadsheets put a byte order mark in front of CSV files.
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                lines = enumerate(file, start=1)
                first = next(((n, line) for n, line in lines if line.strip()), None)
                if first is None:
                    raise WorkloadError(f"{self.path} is empty; {self._understood()}")
                reader = next((r for r in self.readers.values() if r.understands(first[1])), None)
                if reader is None:
                    found = first[1].strip()
                    if found.startswith("version https://git-lfs"):
                        raise WorkloadError(
                            f"{self.path} is a pointer of Git LFS, and not the trace: fetch that with git lfs pull, or "
                            "from the page's download link"
                        )
                    shown = found if len(found) <= 60 else found[:60] + "…"
                    raise WorkloadError(
                        f"{self.path}, line {first[0]} is {shown!r}, which is no known format; {self._understood()}"
                    )
                rows = self._good(reader.read(self.path, first, lines))
                if reader.from_earliest:
                    rows = _from_first(rows) if in_order else _from_earliest(rows)
                yield from rows
        except UnicodeDecodeError:
            raise WorkloadError(f"{self.path} is not a text file; {self._understood()}") from None
        except OSError as error:
            how = self._nearest() or self._understood()
            raise WorkloadError(f"cannot read {self.path}: {error.strerror or error}; {how}") from None

    def _good(self, items: Iterator[WorkloadRow | LeftOut | WorkloadError]) -> Iterator[WorkloadRow]:
        num = 0
        for item in items:
            if isinstance(item, WorkloadRow):
                num += 1
                yield item
            elif isinstance(item, LeftOut):
                self.num_left_out[item.why] += 1
            elif self.skip_bad_rows:
                self.bad_rows.append(str(item))
            else:
                raise item
        if not num:
            if self.notes:
                raise WorkloadError(f"{self.path} has no request that could be offered: {'; '.join(self.notes)}")
            raise WorkloadError(f"{self.path} has a header and no rows: there is nothing to run")

    @property
    def notes(self) -> tuple[str, ...]:
        """After reading: what was left out, in sentences."""
        left = [f"{self.path.name}: {_rows(num)} {why}: left out" for why, num in self.num_left_out.items()]
        if self.bad_rows:
            shown = "; ".join(self.bad_rows[:_SHOWN])
            more = f"; and {len(self.bad_rows) - _SHOWN:,} more" if len(self.bad_rows) > _SHOWN else ""
            num = len(self.bad_rows)
            were = "was" if num == 1 else "were"
            left.append(f"{self.path.name}: {_rows(num, 'broken ')} {were} skipped: {shown}{more}")
        return tuple(left)

    def _nearest(self) -> str:
        """Of a file that is not there: what stands in its folder under nearly this name, if anything does."""
        folder = self.path.parent
        try:
            there = [one.name for one in folder.iterdir()] if folder.is_dir() and not self.path.exists() else []
        except OSError:  # a folder that may not be read, or a name that none may have
            there = []
        return did_you_mean(self.path.name, there) if get_close_matches(self.path.name, there) else ""

    def _understood(self) -> str:
        formats = "; ".join([*(reader.description for reader in self.readers.values()), RECORDING])
        return f"a workload is one of: {formats}; synthetic:rate=4,n=100,prompt=512,output=128"


def _rows(num: int, kind: str = "") -> str:
    return f"{num:,} {kind}{'row' if num == 1 else 'rows'}"


def _from_earliest(rows: Iterator[WorkloadRow]) -> Iterator[WorkloadRow]:
    held = list(rows)
    start = min((row.arrival_ns for row in held), default=0)
    return (row.later(-start) for row in held)


def _from_first(rows: Iterator[WorkloadRow]) -> Iterator[WorkloadRow]:
    start: int | None = None
    for row in rows:
        start = row.arrival_ns if start is None else start
        if row.arrival_ns < start:
            raise WorkloadError(
                f"{row.place or 'a row'} arrives before the first one: a workload that is read lazily must be in order "
                "of arrival; sort it, or read it as a whole"
            )
        yield row.later(-start)
