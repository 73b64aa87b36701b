"""The shape of a decoder-only transformer: all that its cost and its memory depend on."""

from __future__ import annotations

from typing import Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from batchwright.errors import ConfigError
from batchwright_backends.sim.checked import Checked


class ModelShape(Checked):
    """Sizes of a model, under the names of transformers' configurations.

    Attributes:
        name: how it is called in messages.
        num_hidden_layers: decoder layers.
        hidden_size: width of the residual stream.
        num_attention_heads: query heads.
        num_key_value_heads: heads of K and V.
        head_dim: width of a head.
        intermediate_size: width of a dense MLP.
        vocab_size: rows of the embedding; token ids are in ``range(vocab_size)``.
        max_position_embeddings: tokens of one request at most.
        tie_word_embeddings: the language-model head is the embedding.
        gated_mlp: three matrices an MLP (SwiGLU and its kin), else two.
        attention_bias: the projections of Q, K and V have biases.
        qk_norm: Q and K of each layer have norms of their own.
        num_experts: experts of a mixture-of-experts layer; 0: all layers are dense.
        num_experts_per_tok: experts that a token is sent to.
        moe_intermediate_size: width of an expert.
        shared_expert_intermediate_size: width of what all tokens go through beside the experts.
        num_dense_layers: layers of a mixture-of-experts model whose MLP is dense.
        sliding_window: tokens that a sliding layer attends to.
        num_sliding_layers: layers that attend to the window only.
        dtype_bytes: bytes of a weight, of an activation, and of an element of K and V.
        eos_token_ids: tokens that end a text.
        source: where the figures are from.
    """

    name: str
    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    num_experts: NonNegativeInt = 0
    num_experts_per_tok: NonNegativeInt = 0
    moe_intermediate_size: NonNegativeInt = 0
    shared_expert_intermediate_size: NonNegativeInt = 0
    num_dense_layers: NonNegativeInt = 0
    sliding_window: PositiveInt | None = None
    num_sliding_layers: NonNegativeInt = 0
    dtype_bytes: PositiveInt = 2
    eos_token_ids: tuple[NonNegativeInt, ...] = ()
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.num_experts and not (1 <= self.num_experts_per_tok <= self.num_experts and self.moe_intermediate_size):
            raise ValueError(
                f"a model with num_experts {self.num_experts} needs num_experts_per_tok in [1, {self.num_experts}] "
                "and moe_intermediate_size above 0"
            )
        if self.num_sliding_layers and self.sliding_window is None:
            raise ValueError("num_sliding_layers needs sliding_window")
        if max(self.num_sliding_layers, self.num_dense_layers) > self.num_hidden_layers:
            raise ValueError(f"num_sliding_layers and num_dense_layers are at most {self.num_hidden_layers}")
        if len(set(self.eos_token_ids)) >= self.vocab_size:
            raise ValueError("every token of the vocabulary is in eos_token_ids")
        return self

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return self.num_hidden_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP."""
        return 3 if self.gated_mlp else 2

    @property
    def num_parameters(self) -> int:
        """Weights of the model, all experts counted. Biases outside of Q, K and V are left out."""
        h, d = self.hidden_size, self.head_dim
        q_width, kv_width = self.num_attention_heads * d, self.num_key_value_heads * d
        attention = h * (2 * q_width + 2 * kv_width) + 2 * h  # projections, and the two norms of a layer
        if self.attention_bias:
            attention += q_width + 2 * kv_width
        if self.qk_norm:
            attention += 2 * d
        dense = self.mlp_matrices * h * self.intermediate_size
        experts = self.num_experts * (h + self.mlp_matrices * h * self.moe_intermediate_size)
        experts += self.mlp_matrices * h * self.shared_expert_intermediate_size
        num_moe = self.num_moe_layers
        layers = self.num_hidden_layers * attention + (self.num_hidden_layers - num_moe) * dense + num_moe * experts
        embeddings = self.vocab_size * h * (1 if self.tie_word_embeddings else 2)
        return layers + embeddings + h

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_parameters * self.dtype_bytes

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Bytes of K and V of one token, all layers, on each of ``tensor_parallel`` GPUs."""
        heads = max(1, self.num_key_value_heads // tensor_parallel)
        return 2 * self.num_hidden_layers * heads * self.head_dim * self.dtype_bytes

    def check_tensor_parallel(self, tensor_parallel: int) -> None:
        """Refuse a tensor parallel size that does not divide the heads.

        Raises:
            ConfigError: names the sizes that do.
        """
        if tensor_parallel in self.tensor_parallel_sizes:
            return
        sizes = ", ".join(str(n) for n in self.tensor_parallel_sizes)
        raise ConfigError(
            f"{self.name} cannot be split over {tensor_parallel} GPUs: {self.num_attention_heads} query heads and "
            f"{self.num_key_value_heads} KV heads go over {sizes}"
        )

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """Numbers of GPUs over which the heads split evenly (a KV head may be held by several)."""
        kv = self.num_key_value_heads
        return tuple(
            n
            for n in range(1, self.num_attention_heads + 1)
            if self.num_attention_heads % n == 0 and (kv % n == 0 or n % kv == 0)
        )
