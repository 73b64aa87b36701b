"""Batchwright's own trace format: one JSON object a line, with everything a row can carry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from batchwright.errors import InvalidRequestError, WorkloadError, did_you_mean
from batchwright.lab.readers.reader import Item, Line, Reader, RowFields, json_keys, json_rows
from batchwright.lab.row import WorkloadRow
from batchwright.prompts import CHAT_OPTIONS, FORMS, Prompt, check_conversation
from batchwright.request import SLO
from batchwright.token_ids import pack_tokens

REQUIRED = ("arrival_s", "num_prompt_tokens", "num_output_tokens")
PROMPTS = ("prompt", "prompt_token_ids", "messages")
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
    "prefix_lengths",
    "id",
    "after",
    "think_s",
    "slo_class",
    "abort_after_s",
    "abort_after_tokens",
    "answer",
)
_MADE_UP = ("num_prompt_tokens", "prefix_ids", "prefix_block_size", "prefix_lengths")
"""What says how to make up a prompt, where a row brings none."""

_OBJECTIVES = tuple(field.name for field in dataclass_fields(SLO))
_SLO_FORM = 'an object such as {"ttft_s": 1.0, "tpot_s": 0.05}, in seconds'


def understands(line: str) -> bool:
    """Whether this is a row of such a file: it has a prompt, or two of the required keys at least, so that one may be
    misspelt.
    """
    keys = json_keys(line)
    return len(keys & set(REQUIRED)) >= 2 or not keys.isdisjoint(PROMPTS)


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """Rows of the file: fields of ``WorkloadRow``, but ``arrival_s``, and ``id`` for ``row_id``; ``slo`` is
    ``{"ttft_s": …, "tpot_s": …}``.
    """
    return json_rows(path, first, lines, _row)


_KNOWN = frozenset((*REQUIRED, *PROMPTS, *CHAT_OPTIONS, *OPTIONAL))


def _row(fields: RowFields) -> WorkloadRow:
    values = fields.values
    unknown = sorted(values.keys() - _KNOWN)
    if unknown:
        fields.fail(f"unknown field {unknown[0]!r} ({did_you_mean(unknown[0], _KNOWN)})", "known fields only")
    prompt = _prompt(fields)
    has_prompt, has_prefix = prompt is not None, values.get("prefix_ids") is not None
    has_lengths = has_prefix and values.get("prefix_lengths") is not None
    after = _after(fields)
    may_lack_time = has_prompt or after
    if values.get("answer") is not None and not has_prompt:
        fields.fail("answer without a prompt", f"it beside {FORMS}; a row with lengths has num_output_tokens")
    if has_lengths and values.get("prefix_block_size") is not None:
        fields.fail("prefix_lengths beside prefix_block_size", "one of them")
    try:
        return WorkloadRow(
            arrival_ns=0 if may_lack_time and "arrival_s" not in values else round(fields.number("arrival_s", 0) * 1e9),
            num_prompt_tokens=None if has_prompt else fields.whole("num_prompt_tokens", 1),
            num_output_tokens=fields.whole_or_none("num_output_tokens", 1)
            if has_prompt
            else fields.whole("num_output_tokens", 1),
            max_tokens=fields.whole_or_none("max_tokens", 1),
            prefix_ids=fields.wholes("prefix_ids") if has_prefix else (),
            prefix_block_size=fields.whole("prefix_block_size", 1) if has_prefix and not has_lengths else 0,
            prefix_lengths=fields.wholes("prefix_lengths") if has_lengths else (),
            priority=_priority(fields),
            client_id=fields.text_or_none("client_id"),
            weight=1.0 if values.get("weight") is None else fields.number("weight", 0, above=True),
            deadline_s=fields.number_or_none("deadline_s", 0, above=True),
            slo=_slo(fields),
            predicted_output_tokens=fields.whole_or_none("predicted_output_tokens", 0),
            session_id=fields.text_or_none("session_id"),
            program_id=fields.text_or_none("program_id"),
            row_id=fields.text_or_none("id"),
            after=after,
            think_s=fields.number_or_none("think_s", 0) or 0.0,
            slo_class=fields.text_or_none("slo_class"),
            abort_after_s=fields.number_or_none("abort_after_s", 0, above=True),
            abort_after_tokens=fields.whole_or_none("abort_after_tokens", 1),
            prompt=prompt,
            answer=_answer(fields),
            place=fields.place if has_prompt or after else "",
        )
    except WorkloadError as error:
        if str(error).startswith(fields.place):
            raise
        raise WorkloadError(f"{fields.place}: {error}") from None


def _after(fields: RowFields) -> tuple[str, ...]:
    """Names of the rows it waits for, given as one or as a list."""
    value = fields.values.get("after")
    if value is None:
        return ()
    names = value if isinstance(value, list) else [value]
    expected = "the id of a row, or a list of them"
    if not names:
        fields.fail("after is []", expected)
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
            fields.fail(f"after holds {name!r}" if isinstance(value, list) else f"after is {name!r}", expected)
    return tuple(map(str, names))


def _answer(fields: RowFields) -> str | None:
    value = fields.values.get("answer")
    if value is not None and (not isinstance(value, str) or not value):
        fields.fail(f"answer is {value!r}", "a text that is not empty")
    return value


def _prompt(fields: RowFields) -> Prompt | None:
    """The prompt of a row; None: it is to be made up."""
    values = fields.values
    forms = [name for name in PROMPTS if name in values]
    options = {name: values[name] for name in CHAT_OPTIONS if name in values}
    if options and "messages" not in forms:
        fields.fail(f"{next(iter(options))} without messages", "it beside messages only")
    if not forms:
        return None
    if len(forms) > 1:
        fields.fail(f"{' and '.join(forms)}", f"one of {FORMS}")
    made_up = [name for name in _MADE_UP if name in values]
    if made_up:
        fields.fail(f"{made_up[0]} beside {forms[0]}", f"one of them: {forms[0]} is the whole prompt")
    value: Any = values[forms[0]]
    try:
        if forms[0] == "messages":
            check_conversation({"messages": value, **options})
            return {"messages": value, **options}
        if forms[0] == "prompt_token_ids":
            return pack_tokens(fields.wholes("prompt_token_ids")).tolist()
    except InvalidRequestError as error:
        raise WorkloadError(f"{fields.place}: {error}") from None
    if not isinstance(value, str) or not value:
        fields.fail(f"prompt is {value!r}", "a text that is not empty")
    return value


def _priority(fields: RowFields) -> int:
    value = fields.values.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        fields.fail(f"priority is {value!r}", "a whole number; lower goes first")
    return value


def _slo(fields: RowFields) -> SLO | None:
    value = fields.values.get("slo")
    if value is None:
        return None
    if not isinstance(value, dict):
        fields.fail(f"slo is {value!r}", _SLO_FORM)
    for name in sorted(value.keys() - set(_OBJECTIVES)):
        fields.fail(f"slo has no objective {name!r} ({did_you_mean(name, _OBJECTIVES)})", _SLO_FORM)
    inner = RowFields(fields.path, fields.line, fields.row, {f"slo.{name}": v for name, v in value.items()})
    return SLO(
        ttft_s=inner.number_or_none("slo.ttft_s", 0, above=True),
        tpot_s=inner.number_or_none("slo.tpot_s", 0, above=True),
    )


JSONL = Reader(
    description=f"plain JSONL ({', '.join(REQUIRED)}, ...; or {FORMS})",
    understands=understands,
    read=read,
)


def to_json(row: WorkloadRow) -> dict[str, Any]:
    """The row as an object of such a file, which reads as an equal row; fields that say nothing are left out."""
    found: dict[str, Any] = {"arrival_s": row.arrival_ns / 1e9}
    if row.prompt is None:
        found["num_prompt_tokens"] = row.num_prompt_tokens
    elif isinstance(row.prompt, Mapping):
        found |= row.prompt
    else:
        found["prompt" if isinstance(row.prompt, str) else "prompt_token_ids"] = (
            row.prompt if isinstance(row.prompt, str) else list(row.prompt)
        )
    slo = None if row.slo is None else {"ttft_s": row.slo.ttft_s, "tpot_s": row.slo.tpot_s}
    rest = {
        "num_output_tokens": row.num_output_tokens,
        "id": row.row_id,
        "slo": slo,
        **{name: getattr(row, name) for name in OPTIONAL if name not in ("id", "slo")},
    }
    without = {"priority": 0, "weight": 1.0, "think_s": 0.0, "prefix_block_size": 0}
    for name, value in rest.items():
        if value is not None and value != () and value != without.get(name):
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def write_jsonl(path: Path, rows: Iterable[WorkloadRow]) -> None:
    """Write rows to such a file.

    Raises:
        WorkloadError: it cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row), ensure_ascii=False) + "\n" for row in rows)
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}") from None
