"""Mooncake's traces (kvcache-ai/Mooncake; Qin et al., FAST 2025): prompts with hashes of their blocks of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchwright.lab.readers.reader import Line, Reader, json_keys, json_rows
from batchwright.lab.row import WorkloadRow

BLOCK_SIZE = 512
"""Tokens that one of ``hash_ids`` stands for; the last of a prompt may stand for fewer."""

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def understands(line: str) -> bool:
    """Whether this is a row of such a file."""
    return json_keys(line) >= {"timestamp", "input_length", "output_length"}


def read(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[WorkloadRow]:
    """Rows of the trace; ``timestamp`` is in milliseconds from the trace's start."""
    for fields in json_rows(path, first, lines):
        length = fields.whole("input_length", 1)
        ids = fields.wholes("hash_ids")
        num_blocks = -(-length // BLOCK_SIZE)
        if len(ids) > num_blocks:
            fields.fail(
                f"hash_ids has {len(ids)} ids for an input_length of {length}",
                f"at most {num_blocks}, one for each {BLOCK_SIZE} tokens",
            )
        yield WorkloadRow(
            arrival_ns=round(fields.number("timestamp", 0) * 1_000_000),
            num_prompt_tokens=length,
            num_output_tokens=fields.whole("output_length", 1),
            prefix_ids=ids,
            prefix_block_size=BLOCK_SIZE,
        )


MOONCAKE = Reader(
    description=f"a Mooncake trace (JSONL with {', '.join(KEYS)})",
    understands=understands,
    read=read,
)
