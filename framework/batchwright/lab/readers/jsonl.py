"""Batchwright's own trace format: one JSON object a line, with everything a row can carry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchwright.errors import did_you_mean
from batchwright.lab.readers.reader import Line, Reader, RowFields, json_keys, json_rows
from batchwright.lab.row import WorkloadRow
from batchwright.request import SLO

REQUIRED = ("arrival_s", "num_prompt_tokens", "num_output_tokens")
OPTIONAL = (
    "max_tokens",
    "prefix_ids",
    "prefix_block_size",
    "priority",
    "client_id",
    "weight",
    "deadline_s",
    "slo",
    "predicted_output_tokens",
    "session_id",
    "program_id",
)


def understands(line: str) -> bool:
    """Whether this is a row of such a file: it has two of the required keys at least, so that one may be misspelt."""
    return len(json_keys(line) & set(REQUIRED)) >= 2


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[WorkloadRow]:
    """Rows of the file: fields of ``WorkloadRow``, but ``arrival_s``; ``slo`` is ``{"ttft_s": …, "tpot_s": …}``."""
    known = frozenset(REQUIRED + OPTIONAL)
    for fields in json_rows(path, first, lines):
        unknown = sorted(fields.values.keys() - known)
        if unknown:
            fields.fail(f"unknown field {unknown[0]!r} ({did_you_mean(unknown[0], known)})", "known fields only")
        has_prefix = fields.values.get("prefix_ids") is not None
        yield WorkloadRow(
            arrival_ns=round(fields.number("arrival_s", 0) * 1e9),
            num_prompt_tokens=fields.whole("num_prompt_tokens", 1),
            num_output_tokens=fields.whole("num_output_tokens", 1),
            max_tokens=fields.whole_or_none("max_tokens", 1),
            prefix_ids=fields.wholes("prefix_ids") if has_prefix else (),
            prefix_block_size=fields.whole("prefix_block_size", 1) if has_prefix else 0,
            priority=_priority(fields),
            client_id=fields.text_or_none("client_id"),
            weight=1.0 if fields.values.get("weight") is None else fields.number("weight", 0, above=True),
            deadline_s=fields.number_or_none("deadline_s", 0, above=True),
            slo=_slo(fields),
            predicted_output_tokens=fields.whole_or_none("predicted_output_tokens", 0),
            session_id=fields.text_or_none("session_id"),
            program_id=fields.text_or_none("program_id"),
        )


def _priority(fields: RowFields) -> int:
    value = fields.values.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        fields.fail(f"priority is {value!r}", "a whole number; lower goes first")
    return value


def _slo(fields: RowFields) -> SLO | None:
    value = fields.values.get("slo")
    if value is None:
        return None
    if not isinstance(value, dict) or not value.keys() <= {"ttft_s", "tpot_s"}:
        fields.fail(f"slo is {value!r}", 'an object such as {"ttft_s": 1.0, "tpot_s": 0.05}')
    inner = RowFields(fields.path, fields.line, fields.row, {f"slo.{name}": v for name, v in value.items()})
    return SLO(
        ttft_s=inner.number_or_none("slo.ttft_s", 0, above=True),
        tpot_s=inner.number_or_none("slo.tpot_s", 0, above=True),
    )


JSONL = Reader(
    description=f"plain JSONL with {', '.join(REQUIRED)} (optional {', '.join(OPTIONAL)})",
    understands=understands,
    read=read,
)
