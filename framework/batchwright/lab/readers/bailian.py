"""Alibaba's traces of Qwen on Bailian (alibaba-edu/qwen-bailian-usagetraces-anon; Wang et al., USENIX ATC 2025).

Prompts have hashes of their blocks of 16 tokens, and sessions are chains of chats.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchwright.lab.readers.reader import Item, Line, Reader, RowFields, json_keys, json_rows
from batchwright.lab.row import WorkloadRow

BLOCK_SIZE = 16
"""Tokens that one of ``hash_ids`` stands for; the last of a prompt may stand for fewer."""

KEYS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids")
NO_PARENT = -1


def understands(line: str) -> bool:
    """Whether this is a row of such a file."""
    return json_keys(line) >= {"chat_id", "parent_chat_id", "timestamp"}


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """Rows of the trace; ``timestamp`` is in seconds from the trace's start.

    A session is named by the chat that it began with, as far as that is in the file.
    """
    began: dict[int, int] = {}  # a chat to the first one of its session

    def row(fields: RowFields) -> WorkloadRow:
        chat, parent = fields.whole("chat_id", 0), fields.whole("parent_chat_id", NO_PARENT)
        root = began[chat] = began.get(parent, chat if parent == NO_PARENT else parent)
        return hashed_row(
            fields,
            arrival_ns=round(fields.number("timestamp", 0) * 1e9),
            block_size=BLOCK_SIZE,
            session_id=str(root),
            slo_class=fields.text_or_none("type"),
        )

    return json_rows(path, first, lines, row)


def hashed_row(
    fields: RowFields, arrival_ns: int, block_size: int, session_id: str | None = None, slo_class: str | None = None
) -> WorkloadRow:
    """A row with ``input_length``, ``output_length`` and ``hash_ids``, each of which stands for so many tokens."""
    length = fields.whole("input_length", 1)
    ids = fields.wholes("hash_ids")
    num_blocks = -(-length // block_size)
    if len(ids) > num_blocks:
        fields.fail(
            f"hash_ids has {len(ids)} ids for an input_length of {length}",
            f"at most {num_blocks}, one for each {block_size} tokens",
        )
    return WorkloadRow(
        arrival_ns=arrival_ns,
        num_prompt_tokens=length,
        num_output_tokens=fields.whole("output_length", 1),
        prefix_ids=ids,
        prefix_block_size=block_size,
        session_id=session_id,
        slo_class=slo_class,
    )


BAILIAN = Reader(
    description=f"a Bailian trace (JSONL: {', '.join(KEYS)})",
    understands=understands,
    read=read,
)
