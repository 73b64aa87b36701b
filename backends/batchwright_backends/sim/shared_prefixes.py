"""Which prompts of a request log begin alike: a log has lengths, and a prefix cache needs more.

``prefixes.json`` beside a log: ``block_size`` (tokens), ``shared`` (a list of ``[row, earlier row, blocks]``, rows
counted from 0 in order of arrival: so many whole blocks at the head of both prompts are equal) and ``source`` (where
that is from).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchwright.errors import ConfigError

FILE = "prefixes.json"
EXPECTED = '{"block_size": tokens, "shared": [[row, earlier row, blocks], ...], "source": words}'


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """What prompts share.

    Attributes:
        block_size: tokens of a block.
        shared: row, earlier row, and the blocks that both begin with; in order of the rows.
        source: where that comes from, in words.
    """

    block_size: int
    shared: tuple[tuple[int, int, int], ...]
    source: str

    def block_ids(self, num_prompt_tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """An id for each whole block of each prompt, the same where prompts are; nothing for one that shares nothing.

        Args:
            num_prompt_tokens: of each row, in order of arrival.

        Raises:
            ConfigError: a prompt is shorter than what it is said to share, or there is no such row.
        """
        concerned = {row for rows in self.shared for row in rows[:2]}
        beyond = [row for row in concerned if row >= len(num_prompt_tokens)]
        if beyond:
            raise ConfigError(
                f"{FILE} speaks of row {max(beyond)}, and the log has {len(num_prompt_tokens)}, counted from 0: it "
                "belongs to another log"
            )
        fresh = itertools.count()
        alike = {row: (earlier, blocks) for row, earlier, blocks in self.shared}
        ids: list[tuple[int, ...]] = []
        for row, num_tokens in enumerate(num_prompt_tokens):
            if row not in concerned:
                ids.append(())
                continue
            num_blocks = num_tokens // self.block_size
            if row not in alike:
                ids.append(tuple(itertools.islice(fresh, num_blocks)))
                continue
            earlier, blocks = alike[row]
            if blocks > min(num_blocks, len(ids[earlier])):
                raise ConfigError(
                    f"{FILE}: rows {row} and {earlier} cannot share {blocks} blocks of {self.block_size} tokens: their "
                    f"prompts have {num_tokens} and {num_prompt_tokens[earlier]}; it belongs to another log"
                )
            ids.append((*ids[earlier][:blocks], *itertools.islice(fresh, num_blocks - blocks)))
        return ids


def read_shared_prefixes(file: Path) -> SharedPrefixes:
    """Read a ``prefixes.json``.

    Raises:
        ConfigError: it cannot be read, or is no such file.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        size, source = values["block_size"], values.get("source", "")
        shared = tuple(sorted((row, earlier, blocks) for row, earlier, blocks in values["shared"]))
    except (
        OSError,
        UnicodeDecodeError,
        json.JSONDecodeError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error!r}; expected {EXPECTED}") from None
    numbers = [size, *itertools.chain.from_iterable(shared)]
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
    if not (whole and size and all(earlier < row and blocks for row, earlier, blocks in shared)):
        raise ConfigError(f"{str(file)!r}: numbers are whole, and an earlier row comes before; expected {EXPECTED}")
    return SharedPrefixes(size, shared, str(source))


def find_shared_prefixes(prompts: Sequence[Sequence[int]], block_size: int, source: str) -> SharedPrefixes:
    """What prompts share, by their token ids.

    Args:
        prompts: token ids of each row.
        block_size: tokens of a block.
        source: where the prompts come from.
    """
    first_with: dict[int, int] = {}
    names: dict[
        tuple[int, tuple[int, ...]], int
    ] = {}  # of a chain of blocks: its name, by the chain before and a block
    shared = []
    for row, prompt in enumerate(prompts):
        chain, found = -1, (0, 0)
        for i in range(len(prompt) // block_size):
            block = tuple(prompt[i * block_size : (i + 1) * block_size])
            chain = names.setdefault((chain, block), len(names))
            earlier = first_with.setdefault(chain, row)
            if earlier < row:
                found = (earlier, i + 1)
        if found[1]:
            shared.append((row, *found))
    return SharedPrefixes(block_size, tuple(shared), source)
