"""BurstGPT's traces (HPMLL/BurstGPT; Wang et al., KDD 2025): requests to GPT-3.5 and GPT-4, with failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchwright.lab.readers.reader import Item, LeftOut, Line, Reader, RowFields, csv_rows, has_columns
from batchwright.lab.row import WorkloadRow

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
"""Of every release; ``Session ID`` and ``Elapsed time`` came with the third part of the trace (release v2.0)."""

FAILED = "got no response (Response tokens is 0: failures)"


def understands(line: str) -> bool:
    """Whether this is the header of such a file."""
    return has_columns(line, COLUMNS[:4])


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """Rows of the trace; ``Timestamp`` is in seconds of the day on which its collection began."""
    return csv_rows(path, first, lines, _row)


def _row(fields: RowFields) -> Item:
    num_output_tokens = fields.whole("Response tokens", 0)
    if not num_output_tokens:
        return LeftOut(FAILED)
    return WorkloadRow(
        arrival_ns=round(fields.decimal("Timestamp", 0) * 1e9),
        num_prompt_tokens=fields.whole("Request tokens", 1),
        num_output_tokens=num_output_tokens,
        session_id=(fields.values.get("Session ID") or "").strip() or None,
        slo_class=fields.values["Model"].strip() or None,
    )


BURSTGPT = Reader(
    description=f"a BurstGPT trace (CSV: {','.join(COLUMNS)})",
    understands=understands,
    read=read,
    from_earliest=True,
)
