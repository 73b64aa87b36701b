"""Grammars of a small vocabulary, in the form of vLLM's backends of structured output."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar  # pyright: ignore[reportMissingImports]

VOCAB, EOS = 60, 2


class Grammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """After each token a few others may follow, which depend on all before; after so many, the end.

    Args:
        seed: of what may follow.
        length: tokens until nothing but the end may follow.
        rejects_at: the place of a token that it does not accept although it was allowed; None: there is none.
    """

    def __init__(self, seed: int, length: int, rejects_at: int | None = None) -> None:
        self.seed, self.length, self.rejects_at = seed, length, rejects_at
        self.said: list[int] = []

    def allowed(self) -> list[int]:
        """What may follow, in order."""
        if len(self.said) >= self.length:
            return [EOS]
        rng = random.Random(hash((self.seed, *self.said)))
        return sorted(rng.sample([token for token in range(VOCAB) if token != EOS], 3))

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        for token in tokens:
            if self.is_terminated():
                return True
            if token not in self.allowed() or len(self.said) == self.rejects_at:
                return False
            self.said.append(token)
        return True

    def is_terminated(self) -> bool:
        return self.said[-1:] == [EOS]

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        words = [0, 0]
        for token in self.allowed():
            words[token // 32] |= 1 << token % 32
        bitmask[batch_index] = torch.tensor(words).to(torch.int32)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        raise NotImplementedError("nobody speculates")

    def rollback(self, num_tokens: int) -> None:
        raise NotImplementedError("nobody speculates")

    def reset(self) -> None:
        raise NotImplementedError("each request has its own")


class GrammarBackend:
    """What vLLM's manager asks for memory."""

    @staticmethod
    def allocate_token_bitmask(max_num_seqs: int) -> Any:
        return torch.full((max_num_seqs, 2), -1, dtype=torch.int32)

    @staticmethod
    def destroy() -> None:
        """Nothing is held."""
