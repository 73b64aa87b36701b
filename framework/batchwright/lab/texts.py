"""Prompts that are texts, as lengths: for a simulator, which has no tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload


def by_length(workload: Workload, chars_per_token: float) -> Workload:
    """The same requests with made-up tokens in the place of texts, one for so many characters (rounded up).

    A message of a conversation, with its role and its tools, becomes a piece of the prompt; equal pieces are equal
    tokens, so conversations that begin alike share what they share. Outputs get the length of the recorded answer.
    Prompts of token ids stay, and so do rows with lengths.

    Args:
        workload: with texts or conversations.
        chars_per_token: about 4 for English text.

    Raises:
        WorkloadError: it is not a finite number above 0, or a row with a text says neither how long its output is nor
            what was answered.
    """
    if not (math.isfinite(chars_per_token) and chars_per_token > 0):
        raise WorkloadError(f"chars_per_token must be a finite number above 0, not {chars_per_token!r}")
    rows = workload.held()
    free = max((max(row.prefix_ids) for row in rows if row.prefix_ids), default=-1) + 1
    ids: dict[str, int] = {}

    def length(text: str) -> int:
        return max(1, math.ceil(len(text) / chars_per_token))

    def converted(row: WorkloadRow) -> WorkloadRow:
        pieces = _pieces(row.prompt)
        if pieces is None:
            return row
        num_output_tokens = row.num_output_tokens
        if num_output_tokens is None:
            if row.answer is None:
                raise WorkloadError(
                    f"{row.place or 'a row'}: its output is as long as the model makes it, and there is none; give the "
                    "row num_output_tokens or an answer"
                )
            num_output_tokens = length(row.answer)
        numbers = tuple(ids.setdefault(name, free + len(ids)) for name, _ in pieces)
        lengths = tuple(length(text) for _, text in pieces)
        return replace(
            row,
            prompt=None,
            answer=None,
            num_prompt_tokens=sum(lengths),
            num_output_tokens=num_output_tokens,
            prefix_ids=numbers,
            prefix_lengths=lengths,
        )

    changed = tuple(map(converted, rows))
    num = sum(a is not b for a, b in zip(rows, changed, strict=True))
    if not num:
        return workload
    note = f"{num:,} prompts are texts, and were taken for made-up tokens, one for {chars_per_token:g} characters"
    return replace(workload, rows=changed, notes=(*workload.notes, note))


def _pieces(prompt: Any) -> list[tuple[str, str]] | None:
    """A name and a text for each piece of a prompt; None: it is no text."""
    if isinstance(prompt, str):
        return [(f"text {prompt}", prompt)]
    if not isinstance(prompt, Mapping):
        return None
    if "messages" not in prompt:
        text = prompt.get("prompt")
        return [(f"text {text}", text)] if isinstance(text, str) and "prompt_token_ids" not in prompt else None
    pieces: list[tuple[str, str]] = []
    if prompt.get("tools"):
        tools = json.dumps(prompt["tools"], sort_keys=True)
        pieces.append((f"tools {tools}", tools))
    for message in prompt["messages"]:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else json.dumps(content)
        pieces.append((f"{message['role']} {text}", text))
    return pieces
