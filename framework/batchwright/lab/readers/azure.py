"""Azure's LLM inference traces (Azure/AzurePublicDataset), of 2023 and 2024.

Patel et al., Splitwise, ISCA 2024; Stojkovic et al., DynamoLLM, HPCA 2025.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from batchwright.lab.readers.reader import Item, Line, Reader, RowFields, csv_rows, has_columns
from batchwright.lab.row import WorkloadRow

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def understands(line: str) -> bool:
    """Whether this is the header of such a file."""
    return has_columns(line, COLUMNS)


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """Rows of the trace, with times since 1970."""
    return csv_rows(path, first, lines, _row)


def _row(fields: RowFields) -> WorkloadRow:
    return WorkloadRow(_nanoseconds(fields), fields.whole("ContextTokens", 1), fields.whole("GeneratedTokens", 1))


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
    description=f"an Azure LLM trace (CSV: {','.join(COLUMNS)})",
    understands=understands,
    read=read,
    from_earliest=True,
)
