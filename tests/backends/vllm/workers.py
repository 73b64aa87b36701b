"""Stands in for vLLM's workers: keeps what it is told, writes into its blocks, and notices what cannot be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]

NOBODY = 0
"""The block that holds nobody's tokens."""


def next_token(tokens: list[int], vocab: int, allowed: Sequence[int] | None = None) -> int:
    """What the "model" says after these tokens, of those that are allowed; hardly ever the same for others."""
    said = hash(tuple(tokens))
    return said % vocab if allowed is None else allowed[said % len(allowed)]


def masks_of(grammar: Any, vocab: int) -> dict[str, list[int]]:
    """What each request of vLLM's ``GrammarOutput`` may sample."""
    if grammar is None:
        return {}
    rows = dict(zip(grammar.structured_output_request_ids, grammar.grammar_bitmask.tolist(), strict=True))
    return {name: [t for t in range(vocab) if row[t // 32] >> t % 32 & 1] for name, row in rows.items()}


class Workers:
    """Executes what a scheduler of vLLM says.

    Each block remembers for each of its places the whole text up to there, so that a row that reads another's block, or
    one that was given away, is found at once.
    """

    def __init__(self, block_size: int, vocab: int, seed: int = 0) -> None:
        self.block_size, self.vocab = block_size, vocab
        self.tokens: dict[str, list[int]] = {}
        self.num_prompt: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}
        self.steps: list[dict[str, int]] = []
        self.num_masked = 0
        self._rng = random.Random(seed)
        self._rows: dict[str, tuple[int, int]] | None = None

    def execute(self, told: Any) -> ModelRunnerOutput:
        """Both at once, where nobody is constrained."""
        self.forward(told)
        return self.sample(None)

    def forward(self, told: Any) -> None:
        """What comes before sampling."""
        assert self._rows is None, "the step before has not sampled"
        for name in told.finished_req_ids:
            self.tokens.pop(name, None)
        for new in told.scheduled_new_reqs:
            assert new.req_id not in self.tokens, f"{new.req_id} is introduced twice"
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.num_prompt[new.req_id] = len(new.prompt_token_ids)
            self.blocks[new.req_id] = list(new.block_ids[0])
        starts = {new.req_id: new.num_computed_tokens for new in told.scheduled_new_reqs}
        cached = told.scheduled_cached_reqs
        for name, more, computed, outputs in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            starts[name] = computed
            assert outputs == len(self.tokens[name]) - self.num_prompt[name]
            if name in cached.resumed_req_ids:
                self.blocks[name] = list(more[0])
            elif more is not None:
                self.blocks[name] += more[0]
        assert (list(starts) and set(starts) == set(told.num_scheduled_tokens)) or not told.num_scheduled_tokens
        assert told.total_num_scheduled_tokens == sum(told.num_scheduled_tokens.values())
        self.steps.append(dict(told.num_scheduled_tokens))
        for name, num in told.num_scheduled_tokens.items():  # K and V are written before they are read
            self._write(name, starts[name], num)
        self._rows = {name: (starts[name], num) for name, num in told.num_scheduled_tokens.items()}

    def sample(self, grammar: Any) -> ModelRunnerOutput:
        """What the rows of that step get; ``grammar``: vLLM's ``GrammarOutput``."""
        assert self._rows is not None
        rows, self._rows, self.masks = self._rows, None, masks_of(grammar, self.vocab)
        assert set(self.masks) <= set(rows)
        self.num_masked += len(self.masks)
        sampled = {name: self._run(name, *row) for name, row in rows.items()}
        order = list(sampled)
        self._rng.shuffle(order)
        return ModelRunnerOutput(
            req_ids=order,
            req_id_to_index={name: i for i, name in enumerate(order)},
            sampled_token_ids=[sampled[name] for name in order],
        )

    def _place(self, name: str, position: int) -> tuple[int, int]:
        block = self.blocks[name][position // self.block_size]
        assert block != NOBODY
        return block, position % self.block_size

    def _write(self, name: str, start: int, num: int) -> None:
        tokens = self.tokens[name]
        assert 0 < num <= len(tokens) - start
        for position in range(start, start + num):
            self.written[self._place(name, position)] = tuple(tokens[: position + 1])

    def _run(self, name: str, start: int, num: int) -> list[int]:
        tokens = self.tokens[name]
        for position in range(start + num):
            assert self.written[self._place(name, position)] == tuple(tokens[: position + 1]), (name, position)
        if start + num < len(tokens):
            return []
        tokens.append(next_token(tokens, self.vocab, self.masks.get(name)))
        return tokens[-1:]
