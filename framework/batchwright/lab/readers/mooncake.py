"""Mooncake's traces (kvcache-ai/Mooncake; Qin et al., FAST 2025): prompts with hashes of their blocks of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchwright.lab.readers.bailian import hashed_row
from batchwright.lab.readers.reader import Item, Line, Reader, json_keys, json_rows

BLOCK_SIZE = 512
"""Tokens that one of ``hash_ids`` stands for; the last of a prompt may stand for fewer."""

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def understands(line: str) -> bool:
    """Whether this is a row of such a file."""
    return json_keys(line) >= {"timestamp", "input_length", "output_length"}


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[Item]:
    """Rows of the trace; ``timestamp`` is in milliseconds from the trace's start."""
    return json_rows(
        path, first, lines, lambda f: hashed_row(f, round(f.number("timestamp", 0) * 1_000_000), BLOCK_SIZE)
    )


MOONCAKE = Reader(
    description=f"a Mooncake trace (JSONL: {', '.join(KEYS)})",
    understands=understands,
    read=read,
)
