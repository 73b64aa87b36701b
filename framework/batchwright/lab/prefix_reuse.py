"""How much of a workload's prompts was there before: what a prefix cache could hit at best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from batchwright.lab.row import WorkloadRow
from batchwright.token_ids import pack_tokens

_BLOCK = 16
"""Tokens of a block, where prompts are token ids; prompts with ``prefix_ids`` are compared token by token."""


def prefix_reuse(rows: Iterable[WorkloadRow]) -> float | None:
    """Share of the prompt tokens that a cache without a bound would hold, each prompt being there once it has arrived.

    Of Mooncake's conversation trace it is 37.4% (and 36.6% of its blocks of 512). What waits for others counts in the
    order of the rows. Outputs are not counted, since a workload does not say what they are. None: a prompt is text,
    which has no tokens yet.
    """
    reuse = PrefixReuse()
    for row in rows:
        if not reuse.add(row):
            return None
    return reuse.share


class PrefixReuse:
    """Counts it row by row.

    Attributes:
        num_tokens: prompt tokens so far.
        num_hits: those of them that were there before.
        num_pieces, num_pieces_hit: the same of pieces: blocks of the workload, or messages.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_hits = 0
        self.num_pieces = 0
        self.num_pieces_hit = 0
        # A prefix is a node: its parent and what it goes on with, to its number and the longest piece so far.
        self._nodes: dict[tuple[int, object], tuple[int, int]] = {}

    @property
    def share_of_pieces(self) -> float:
        """Share of pieces that were there before, whole."""
        return self.num_pieces_hit / self.num_pieces if self.num_pieces else 0.0

    @property
    def share(self) -> float:
        """Share of hits."""
        return self.num_hits / self.num_tokens if self.num_tokens else 0.0

    def add(self, row: WorkloadRow) -> bool:
        """One more prompt; False: it is text."""
        if isinstance(row.prompt, (str, Mapping)):
            return False
        node, hits, num_tokens, known = -1, 0, 0, True
        for piece, length in _pieces(row):
            num_tokens += length
            number, longest = self._nodes.get((node, piece), (len(self._nodes), 0))
            self.num_pieces += 1
            if known:
                hits += min(length, longest)
                known = longest >= length
                self.num_pieces_hit += known
            self._nodes[node, piece] = number, max(longest, length)
            node = number
        self.num_hits += hits
        self.num_tokens += row.num_prompt_tokens if row.num_prompt_tokens is not None else num_tokens
        return True


def _pieces(row: WorkloadRow) -> Iterator[tuple[object, int]]:
    if row.prompt is None:
        yield from row.prefix()
        return
    assert not isinstance(row.prompt, (str, Mapping))
    tokens = np.frombuffer(pack_tokens(row.prompt), dtype=np.int32)
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        yield block.tobytes(), len(block)
