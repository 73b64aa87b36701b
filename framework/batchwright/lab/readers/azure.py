"""Azure's LLM inference traces (Azure/AzurePublicDataset; Patel et al., Splitwise, ISCA 2024)."""

from __future__ import annotations

import calendar
import csv
import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from batchwright.lab.readers.reader import Line, Reader, RowFields
from batchwright.lab.row import WorkloadRow

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def understands(line: str) -> bool:
    """Whether this is the header of such a file."""
    return set(COLUMNS) <= {name.strip() for name in line.split(",")}


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[WorkloadRow]:
    """Rows of the trace; times count from its earliest row."""
    header = [name.strip() for name in next(csv.reader([first[1]]))]
    rows: list[tuple[int, int, int]] = []
    for number, line in lines:
        if not line.strip():
            continue
        cells = next(csv.reader([line]))
        fields = RowFields(path, number, len(rows) + 1, dict(zip(header, cells, strict=False)))
        if len(cells) != len(header):
            fields.fail(f"{len(cells)} fields", f"{len(header)}: {','.join(header)}")
        rows.append((_nanoseconds(fields), fields.whole("ContextTokens", 1), fields.whole("GeneratedTokens", 1)))
    start = min((when for when, _, _ in rows), default=0)
    for when, num_prompt_tokens, num_output_tokens in rows:
        yield WorkloadRow(when - start, num_prompt_tokens, num_output_tokens)


def _nanoseconds(fields: RowFields) -> int:
    """Nanoseconds since 1970 of the row's time; the traces give seven decimals, more than a datetime holds."""
    text = fields.values["TIMESTAMP"].strip()
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        date, time, fraction, zone = found.groups()
        return _second(date, time, zone or "") * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
    except ValueError:
        fields.fail(f"TIMESTAMP is {text!r}", "a time such as 2023-11-16 18:15:46.6805900")


@lru_cache(maxsize=4096)
def _second(date: str, time: str, zone: str) -> int:
    return calendar.timegm(datetime.fromisoformat(f"{date}T{time}{zone}").utctimetuple())


AZURE = Reader(
    description=f"an Azure LLM trace (CSV with the header {','.join(COLUMNS)})",
    understands=understands,
    read=read,
)
