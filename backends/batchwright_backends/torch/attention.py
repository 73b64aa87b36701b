"""How the attention of transformers' models arrives at the paged KV cache.

transformers' modeling code looks its attention function up by name. Registered here is one more name,
``ATTENTION``: a model loaded with it calls :func:`paged_attention` in every layer, which hands the call to the session
that is open in this thread: a step of a runner, or the probe that finds out at load what the layers are. No mask is
built: transformers builds none for a name without a mask function.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from batchwright.errors import BackendError
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache

ATTENTION = "batchwright"


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one layer's attention is.

    Attributes:
        index: its place among the layers, from 0.
        num_heads: of Q.
        num_kv_heads: of K and V; ``num_heads`` is a multiple of it.
        key_width: of a head of Q and K.
        value_width: of a head of V.
        scaling: factor of the scores.
        window: tokens that a token attends to at most, itself included; None: all before it.
        softcap: scores s become ``softcap * tanh(s / softcap)``; None: they stay.
        sinks: float32[heads], attention sinks: one score more for each head, of a key whose value is zero, neither
            scaled nor capped; None: the layer has none.
    """

    index: int
    num_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int
    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = field(default=None, compare=False)


class AttentionSession(Protocol):
    """Who answers the models' calls while it is open."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attention of flat tokens.

        Args:
            module: the layer that calls.
            query: [1, heads, T, key width].
            key: [1, KV heads, T, key width].
            value: [1, KV heads, T, value width].
            kwargs: what else the model passes, such as ``scaling``, ``sliding_window``, ``softcap``.

        Returns:
            [1, T, heads, value width].
        """
        ...


_open = threading.local()


@contextmanager
def attending(session: AttentionSession) -> Iterator[None]:
    """Let ``session`` answer the attention calls of this thread."""
    before = getattr(_open, "session", None)
    _open.session = session
    try:
        yield
    finally:
        _open.session = before


def open_session() -> Any:
    """The session that is open in this thread.

    Raises:
        BackendError: none is: the model was called by somebody else than its runner.
    """
    session: AttentionSession | None = getattr(_open, "session", None)
    if session is None:
        raise BackendError(
            f"a model loaded with attn_implementation={ATTENTION!r} was called outside a step; "
            "to call it yourself, first do model.set_attn_implementation('sdpa')"
        )
    return session


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' models call; shapes as in :meth:`AttentionSession.attend`."""
    out: torch.Tensor = open_session().attend(module, query, key, value, attention_mask=attention_mask, **kwargs)
    return out, None


AttentionInterface.register(ATTENTION, paged_attention)


class PagedStep:
    """One step's attention: K and V go to their slots, then each token attends through its row's block table."""

    def __init__(
        self,
        layers: Mapping[torch.nn.Module, AttentionLayer],
        cache: KVCache,
        kernel: AttentionKernel,
        plan: Any,
        slots: torch.Tensor,
    ) -> None:
        self.layers = layers
        self.cache = cache
        self.kernel = kernel
        self.plan = plan
        self.slots = slots

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """See :class:`AttentionSession`."""
        layer = self.layers[module]
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        out = self.kernel.write_and_attend(self.plan, layer, query, key, value, self.slots, self.cache)
        return out.unsqueeze(0)
