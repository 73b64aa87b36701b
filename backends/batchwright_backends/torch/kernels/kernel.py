"""What an attention kernel is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from batchwright_backends.torch.inputs import StepInputs, StepTensors
from batchwright_backends.torch.kernels.demand import Demand

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache


class AttentionKernel(ABC):
    """Computes attention of a step's flat tokens over paged K and V.

    Attributes:
        name: as in the option ``attention``.
        title: as in messages; more exact than ``name`` where two kernels share it.
        default_block_size: where the config leaves it open.
        not_captured: in one clause, why a CUDA graph cannot hold its work; None: it can, and has ``plan_decodes``.
    """

    name: str
    title: str
    default_block_size: int = 16
    not_captured: str | None = "how it divides its work depends on the lengths of the rows"

    @staticmethod
    @abstractmethod
    def refusal(demand: Demand) -> str | None:
        """None, or in one clause why it cannot do what is demanded here."""

    @classmethod
    def make(cls, demand: Demand) -> AttentionKernel:
        """The kernel, for a demand that it does not refuse."""
        return cls()

    @abstractmethod
    def plan(self, inputs: StepInputs, cache: KVCache) -> Any:
        """What all layers of a step share: made once a step, handed to ``attend``."""

    def plan_decodes(self, tensors: StepTensors, max_keys: int) -> Any:
        """The plan of a step of decodes that a CUDA graph records once and replays with other values.

        Args:
            tensors: one token a row. Their values change between replays, in place: nothing that follows from them may
                be kept elsewhere, on the host least of all.
            max_keys: tokens that a row may attend to at most, in any replay.

        Raises:
            NotImplementedError: ``not_captured`` says why.
        """
        raise NotImplementedError(f"{self.title}: {self.not_captured}")

    @abstractmethod
    def attend(self, plan: Any, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Causal attention of the step's tokens, each over its request's tokens up to itself.

        Args:
            plan: of this step.
            layer: which layer, and what its attention is.
            query: [T, heads, key width].
            cache: holds K and V of all tokens attended to, this step's included.

        Returns:
            [T, heads, value width].
        """

    def write_and_attend(
        self,
        plan: Any,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        slots: torch.Tensor,
        cache: KVCache,
    ) -> torch.Tensor:
        """Put K and V of the step's tokens into their slots, then attend.

        Args:
            plan: of this step.
            layer: which layer.
            query: [T, heads, key width].
            key: [T, KV heads, key width].
            value: [T, KV heads, value width].
            slots: int64[T].
            cache: of all tokens.

        Returns:
            [T, heads, value width].
        """
        cache.write(layer.index, key, value, slots)
        return self.attend(plan, layer, query, cache)
