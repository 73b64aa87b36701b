"""ShareGPT's conversations: a JSON list (or JSONL) of ``{"id", "conversations": [{"from", "value"}, ...]}``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from batchwright.errors import WorkloadError
from batchwright.lab.readers.reader import Item, LeftOut, Line, Reader, RowFields, json_keys
from batchwright.lab.row import WorkloadRow

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "system": "system",
}
"""Names of speakers in such files, and what they are called here."""

NO_TURN = "had no turn of a user that is answered"


def understands(line: str) -> bool:
    """Whether a file that begins so is such a one."""
    return line.lstrip().startswith("[") or "conversations" in json_keys(line)


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """A row for each turn of a user that is answered: its prompt is the conversation up to there.

    Turns of one conversation are a session: each waits for the one before it. They have no times: all conversations
    begin at once.
    """
    for place, (number, talk) in enumerate(_talks(path, first, lines), start=1):
        fields = RowFields(path, number, place, talk if isinstance(talk, dict) else {})
        try:
            rows = list(_rows(fields, talk, place))
        except WorkloadError as error:
            yield error
            continue
        if rows:
            yield from rows
        else:
            yield LeftOut(NO_TURN)


def _talks(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[tuple[int, Any]]:
    """The conversations, each with a line of the file: its own, or the first where the file is one list."""
    if first[1].lstrip().startswith("["):
        text = "".join(line for _, line in chain([first], lines))
        try:
            talks = json.loads(text)
        except json.JSONDecodeError as error:
            raise WorkloadError(
                f"{path}, line {error.lineno + first[0] - 1}: not JSON ({error.msg} at column {error.colno}); expected "
                "a list of conversations"
            ) from None
        yield from ((first[0], talk) for talk in talks)
        return
    for number, line in chain([first], lines):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                yield number, error


def _rows(fields: RowFields, talk: Any, place: int) -> Iterator[WorkloadRow]:
    expected = '{"id": "...", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}'
    if not isinstance(talk, dict):
        fields.fail("not JSON" if isinstance(talk, json.JSONDecodeError) else f"a JSON {type(talk).__name__}", expected)
    turns = talk.get("conversations")
    if not isinstance(turns, list):
        fields.fail(f"conversations is {turns!r}" if "conversations" in talk else "there is no conversations", expected)
    session = fields.text_or_none("id") or f"conversation {place}"
    messages: list[dict[str, str]] = []
    num_turns = 0
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            fields.fail(f"a turn is {turn!r}", 'an object such as {"from": "human", "value": "..."}')
        role = ROLES.get(str(turn.get("from")))
        if role is None:
            fields.fail(f"a turn is from {turn.get('from')!r}", f"one of {', '.join(ROLES)}")
        text = turn["value"]
        if role == "assistant" and messages and messages[-1]["role"] == "user" and text:
            yield WorkloadRow(
                arrival_ns=0,
                num_prompt_tokens=None,
                num_output_tokens=None,
                prompt={"messages": list(messages)},
                answer=text,
                session_id=session,
                row_id=f"{place}.{num_turns}",
                after=(f"{place}.{num_turns - 1}",) if num_turns else (),
                place=fields.place,
            )
            num_turns += 1
        if text:
            messages.append({"role": role, "content": text})


SHAREGPT = Reader(
    description='ShareGPT conversations (JSON: [{"id", "conversations": [{"from", "value"}]}])',
    understands=understands,
    read=read,
)
