"""Token ids of prompts: seeded, equal where a workload says that prefixes are shared, and nowhere else."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow
from batchwright.token_ids import DeferredTokens, Prompt, pack_tokens

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_32 = np.uint64(32)
_WORD = 2**64 - 1


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), in place: uint64[n], each well mixed."""
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x


def _mix_one(x: int) -> int:
    """``_mix`` of one number, cut to 64 bits."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * int(_MIX_1)) & _WORD
    x = ((x ^ (x >> 27)) * int(_MIX_2)) & _WORD
    return x ^ (x >> 31)


class Prompts:
    """Makes the token ids of a workload's prompts.

    Every shared block and every row's own part is a stream of its own; a token is a hash of seed, stream and place,
    so no prompt depends on which others were made. The first tokens of a stream are its number in base
    ``vocab_size``: different streams part within ``num_distinct`` tokens by construction, not by luck.

    Args:
        rows: all rows of the workload.
        vocab_size: token ids are in ``range(vocab_size)``; at least 2.
        seed: of the tokens.

    Raises:
        WorkloadError: the vocabulary has fewer than two tokens.
    """

    def __init__(self, rows: Iterable[WorkloadRow], vocab_size: int, seed: int = 0) -> None:
        if vocab_size < 2:
            raise WorkloadError(f"vocab_size must be at least 2 to make different prompts, not {vocab_size}")
        self.vocab_size = vocab_size
        self._vocab = np.uint64(vocab_size)
        self._key = _mix_one(seed)
        self._places: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)  # of tokens in a stream, times a constant
        # Streams are numbered: even numbers are rows, odd ones shared blocks in order of first appearance.
        self._shared: dict[int, int] = {}
        num_rows = 0
        for row in rows:
            num_rows += 1
            for prefix_id in row.prefix_ids:
                self._shared.setdefault(prefix_id, 2 * len(self._shared) + 1)
        largest = max(2 * num_rows, 2 * len(self._shared))
        self.num_distinct = 1
        while vocab_size**self.num_distinct <= largest:
            self.num_distinct += 1
        # What all made-up prompts follow from, beside their lengths and the numbers of their streams.
        self._all = xxh3_64_intdigest(struct.pack("<QQQ", self._key, vocab_size, self.num_distinct))

    def token_ids(self, index: int, row: WorkloadRow) -> NDArray[np.int32]:
        """int32[num_prompt_tokens]: the prompt of the row that stands at ``index`` in the workload.

        Raises:
            WorkloadError: it is a text or a conversation, which a tokenizer has yet to turn into token ids.
        """
        if row.prompt is not None:
            return _given(row)
        length = row.num_prompt_tokens or 0
        num_shared = sum(row.prefix_lengths) if row.prefix_lengths else len(row.prefix_ids) * row.prefix_block_size
        own = self._streams([2 * index], max(0, length - num_shared))
        if not row.prefix_ids:
            return own
        numbers = [self._shared[i] for i in row.prefix_ids]
        if row.prefix_lengths:
            lengths = zip(numbers, row.prefix_lengths, strict=True)
            shared = np.concatenate([self._streams([number], num) for number, num in lengths])
        else:
            shared = self._streams(numbers, row.prefix_block_size)
        return np.concatenate([shared, own])[:length]

    def prompt(self, index: int, row: WorkloadRow) -> tuple[Prompt | DeferredTokens, str]:
        """The same for a request, and 16 hex digits: equal ones mean equal prompts.

        One that is made up is made when somebody reads it, and its digits are of what it follows from.

        Raises:
            WorkloadError: as ``token_ids``.
        """
        if row.prompt is not None:
            given = _given(row)
            return given, xxh3_64_hexdigest(given.tobytes())
        length = row.num_prompt_tokens or 0
        parts = [length, 2 * index]
        if row.prefix_ids:
            lengths = row.prefix_lengths or (row.prefix_block_size,) * len(row.prefix_ids)
            parts += [
                number for i, num in zip(row.prefix_ids, lengths, strict=True) for number in (self._shared[i], num)
            ]
            if sum(lengths) >= length:
                parts[1] = -1  # nothing of its own
        made = DeferredTokens(length, self.vocab_size, partial(self.token_ids, index, row))
        return made, xxh3_64_hexdigest(struct.pack(f"<{len(parts)}q", *parts), self._all)

    def _streams(self, numbers: list[int], length: int) -> NDArray[np.int32]:
        """int32[len(numbers) * length]: the first ``length`` tokens of each stream, one stream behind the other."""
        if length > len(self._places):
            self._places = np.arange(2 * length, dtype=np.uint64) * _GOLDEN
        keys = np.array([_mix_one(number * int(_GOLDEN) + self._key) for number in numbers], dtype=np.uint64)
        hashed = _mix(self._places[:length] + keys[:, None])
        hashed >>= _32
        hashed *= self._vocab
        hashed >>= _32
        tokens = hashed.astype(np.int32)
        for place in range(min(self.num_distinct, length)):
            tokens[:, place] = [number // self.vocab_size**place % self.vocab_size for number in numbers]
        return tokens.ravel()


def _given(row: WorkloadRow) -> NDArray[np.int32]:
    """The prompt that a row brings."""
    if row.prompt is None or isinstance(row.prompt, (str, Mapping)):
        raise WorkloadError(f"{row.place or 'a row'}: its prompt is text; say with_token_ids(workload, backend) first")
    return np.frombuffer(pack_tokens(row.prompt), dtype=np.int32)
