"""Batchwright's own trace format: one JSON object a line, with everything a row can carry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchwright.errors import InvalidRequestError, WorkloadError, did_you_mean
from batchwright.lab.readers.reader import Line, Reader, RowFields, json_keys, json_rows
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
)
_MADE_UP = ("num_prompt_tokens", "prefix_ids", "prefix_block_size")
"""What says how to make up a prompt, where a row brings none."""


def understands(line: str) -> bool:
    """Whether this is a row of such a file: it has a prompt, or two of the required keys at least, so that one may be
    misspelt.
    """
    keys = json_keys(line)
    return len(keys & set(REQUIRED)) >= 2 or not keys.isdisjoint(PROMPTS)


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[WorkloadRow]:
    """Rows of the file: fields of ``WorkloadRow``, but ``arrival_s``; ``slo`` is ``{"ttft_s": …, "tpot_s": …}``."""
    known = frozenset((*REQUIRED, *PROMPTS, *CHAT_OPTIONS, *OPTIONAL))
    for fields in json_rows(path, first, lines):
        unknown = sorted(fields.values.keys() - known)
        if unknown:
            fields.fail(f"unknown field {unknown[0]!r} ({did_you_mean(unknown[0], known)})", "known fields only")
        prompt = _prompt(fields)
        has_prompt, has_prefix = prompt is not None, fields.values.get("prefix_ids") is not None
        yield WorkloadRow(
            arrival_ns=0
            if has_prompt and "arrival_s" not in fields.values
            else round(fields.number("arrival_s", 0) * 1e9),
            num_prompt_tokens=None if has_prompt else fields.whole("num_prompt_tokens", 1),
            num_output_tokens=fields.whole_or_none("num_output_tokens", 1)
            if has_prompt
            else fields.whole("num_output_tokens", 1),
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
            prompt=prompt,
            place=fields.place if has_prompt else "",
        )


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
    if not isinstance(value, dict) or not value.keys() <= {"ttft_s", "tpot_s"}:
        fields.fail(f"slo is {value!r}", 'an object such as {"ttft_s": 1.0, "tpot_s": 0.05}')
    inner = RowFields(fields.path, fields.line, fields.row, {f"slo.{name}": v for name, v in value.items()})
    return SLO(
        ttft_s=inner.number_or_none("slo.ttft_s", 0, above=True),
        tpot_s=inner.number_or_none("slo.tpot_s", 0, above=True),
    )


JSONL = Reader(
    description=f"plain JSONL with {', '.join(REQUIRED)}, or with a prompt: {FORMS} (optional {', '.join(OPTIONAL)})",
    understands=understands,
    read=read,
)
