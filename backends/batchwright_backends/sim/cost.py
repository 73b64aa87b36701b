"""How long a step takes: a closed form in the sums of its batch, a model's shape and a GPU's constants.

The time of a step is a sum over what its layers run one after another: dense layers, attention, element-wise work and,
on several GPUs, all-reduces; then the language-model head, sampling, and what the host adds. Each term is a smooth
roofline: a p-norm of the time that arithmetic would take alone and the time that memory would take alone, plus a floor
for launches. :mod:`batchwright_backends.sim.gpus` states the form of each term beside its constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import expm1

import numpy as np
from numpy.typing import NDArray

from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.load import AttentionLoad, StepLoad, attention_load, sliding_load
from batchwright_backends.sim.product import Floats, matmul_seconds
from batchwright_backends.sim.shape import ModelShape

_BLOCK = 256  # counts of tokens or rows that are computed at once


@dataclass(frozen=True, slots=True)
class _Matmul:
    """An ``[m, k] x [k, n]`` product with one row a token."""

    n: int
    k: int


class CostModel:
    """Time of steps of one model on one GPU, or split over several.

    Args:
        shape: the model.
        gpu: its constants.
        tensor_parallel: GPUs that share every layer.

    Raises:
        ConfigError: the model's heads do not split over so many GPUs.
    """

    def __init__(self, shape: ModelShape, gpu: Gpu, tensor_parallel: int = 1) -> None:
        shape.check_tensor_parallel(tensor_parallel)
        self.shape = shape
        self.gpu = gpu
        self.tensor_parallel = tp = tensor_parallel
        bytes_, h = shape.dtype_bytes, shape.hidden_size
        heads, kv_heads = shape.num_attention_heads // tp, max(1, shape.num_key_value_heads // tp)
        q_width, kv_width = heads * shape.head_dim, kv_heads * shape.head_dim
        up = 2 if shape.gated_mlp else 1  # gate and up projections run as one matmul

        def mlp(width: int) -> list[_Matmul]:
            width = math.ceil(width / tp)
            return [_Matmul(up * width, h), _Matmul(h, width)] if width else []

        num_moe = shape.num_moe_layers
        # (how often a step runs it, what)
        self._matmuls = [
            *((shape.num_hidden_layers, m) for m in (_Matmul(q_width + 2 * kv_width, h), _Matmul(h, q_width))),
            *((shape.num_hidden_layers - num_moe, m) for m in mlp(shape.intermediate_size)),
            *((num_moe, m) for m in (_Matmul(shape.num_experts, h), *mlp(shape.shared_expert_intermediate_size))),
        ]
        self._experts = [(num_moe, m) for m in mlp(shape.moe_intermediate_size)] if num_moe else []
        self._head = _Matmul(math.ceil(shape.vocab_size / tp), h)

        # Element-wise bytes of a token in a layer: two norms with the residual added (each reads and writes two rows
        # of h), rotary embedding in place on Q and K, and the activation (reads gate and up, writes one).
        active = shape.num_experts_per_tok * shape.moe_intermediate_size + shape.shared_expert_intermediate_size
        inner = (num_moe * active + (shape.num_hidden_layers - num_moe) * shape.intermediate_size) / (
            shape.num_hidden_layers * tp
        )
        self._elementwise_bytes = bytes_ * (8 * h + 2 * (q_width + kv_width) + (up + 1) * inner)

        # Attention, all of it a layer: floats that a step multiplies with its sums.
        decode, chunk = gpu.decode_attention, gpu.chunk_attention
        self._kv_s = 2 * kv_width * bytes_ / decode.bandwidth  # a token of context read
        self._decode_row_s = decode.head_row_s * kv_heads
        self._decode_terms = (
            self._kv_s,
            decode.row_power,
            decode.power,
            decode.key_s,
            decode.floor_s,
            decode.ramp_s,
            decode.ramp_rows,
        )
        self._chunk_row_s = chunk.head_row_s * kv_heads
        self._pair_s = 4 * q_width / chunk.flops  # a query against a key: two products of head_dim, 2 FLOP each
        self._io_s = 2 * (q_width + kv_width) * bytes_ / chunk.io_bandwidth  # Q, K, V in, output out
        self._num_sliding = shape.num_sliding_layers
        self._num_full = shape.num_hidden_layers - shape.num_sliding_layers

        self._tokens_s: dict[int, float] = {}  # by tokens of the step: whatever depends on nothing else
        self._rows_s: dict[int, float] = {}  # by sampled rows: head and sampling
        self._decodes_s: dict[int, float] = {}  # by rows of a step of decodes: both, and the host

    def step_ns(self, load: StepLoad) -> int:
        """Nanoseconds of a step, rounded once."""
        return round(1e9 * self.step_s(load))

    def step_s(self, load: StepLoad) -> float:
        """Seconds of a step; 0 for a step without tokens."""
        if not load.num_tokens:
            return 0.0
        if load.sliding is None and load.num_tokens == load.num_rows == load.num_sampled:
            return self.decode_s(load.num_rows, load.attention.kv_tokens, load.attention.kv_max)
        time = self.tokens_s(load.num_tokens) + self.sampled_s(load.num_sampled) + self.host_s(load.num_rows)
        if self._num_full:
            time += self._num_full * self.attention_s(load.num_rows, load.num_tokens, load.attention)
        if load.sliding is not None:
            time += self._num_sliding * self.attention_s(load.num_rows, load.num_tokens, load.sliding)
        return time

    def decode_s(self, num_rows: int, kv_tokens: int, kv_max: int) -> float:
        """Seconds of a step whose rows have one token each and sample, in a model without sliding layers.

        It is what :meth:`step_s` answers for such a step, without the objects.

        Args:
            num_rows: requests, at least 1.
            kv_tokens: tokens that they attend to, their own included.
            kv_max: the longest of these contexts.
        """
        return self.decodes_s(num_rows, kv_tokens, kv_max, 1)[0]

    def decodes_s(self, num_rows: int, kv_tokens: int, kv_max: int, num_steps: int) -> list[float]:
        """Seconds of so many steps that the same rows take one after the other, as :meth:`decode_s` of each.

        Args:
            num_rows, kv_tokens, kv_max: of the first; in each further one all rows are longer by one.
            num_steps: at least 1.
        """
        fixed = self._decodes_s.get(num_rows)
        if fixed is None:
            fixed = self._decodes_s[num_rows] = (
                self.tokens_s(num_rows) + self.sampled_s(num_rows) + self.host_s(num_rows)
            )
        num_layers = self._num_full
        return [fixed + num_layers * time for time in self._decode_attention_s(num_rows, kv_tokens, kv_max, num_steps)]

    def load(
        self, num_computed: NDArray[np.int32], num_scheduled: NDArray[np.int32], num_tokens: int, num_sampled: int
    ) -> StepLoad:
        """The sums of a batch.

        Args:
            num_computed: int32[n], tokens of each row whose K and V exist before the step.
            num_scheduled: int32[n], tokens of each row in the step.
            num_tokens: their sum.
            num_sampled: rows that sample.
        """
        if not num_tokens:
            return StepLoad(0, 0, 0, AttentionLoad(0, 0))
        tile = self.gpu.chunk_attention.tile
        attention = attention_load(num_computed, num_scheduled, num_tokens, tile)
        sliding = None
        if self._num_sliding and self.shape.sliding_window is not None:
            sliding = sliding_load(num_computed, num_scheduled, tile, self.shape.sliding_window)
        return StepLoad(len(num_computed), num_tokens, num_sampled, attention, sliding)

    def attention_s(self, num_rows: int, num_tokens: int, load: AttentionLoad) -> float:
        """Seconds of attention in one layer.

        A batch with chunks in it costs at least what its rows would cost if each had one token: more queries are
        never faster.
        """
        time = self.decode_attention_s(num_rows, load.kv_tokens, load.kv_max)
        if num_tokens == num_rows:
            return time
        chunk = self.gpu.chunk_attention
        kv = load.kv_tokens * self._kv_s
        area = load.chunk_area + chunk.tile * (load.kv_tokens - load.chunk_kv_tokens)
        work = area * self._pair_s + num_tokens * self._io_s + kv + num_rows * self._chunk_row_s
        return max(time, _norm(work, chunk.floor_s + chunk.key_s * load.kv_max, chunk.power))

    def decode_attention_s(self, num_rows: int, kv_tokens: int, kv_max: int) -> float:
        """Seconds of attention in one layer of rows that have one token each; sums as in :class:`AttentionLoad`."""
        return self._decode_attention_s(num_rows, kv_tokens, kv_max, 1)[0]

    def _decode_attention_s(self, num_rows: int, kv_tokens: int, kv_max: int, num_steps: int) -> list[float]:
        """The same of steps in a row, each of which has one token of each row more.

        It is what a simulator spends most of its time on, so its two norms are written out.
        """
        kv_s, row_power, power, key_s, floor_s, ramp_s, ramp_rows = self._decode_terms
        rows_s, of_row_power, of_power = num_rows * self._decode_row_s, 1.0 / row_power, 1.0 / power
        ramp = ramp_s * num_rows / (num_rows + ramp_rows) if ramp_s else 0.0
        times = []
        for step in range(num_steps):
            high, low = (kv_tokens + step * num_rows) * kv_s, rows_s
            if high < low:
                high, low = low, high
            work = high * (1.0 + (low / high) ** row_power) ** of_row_power if low > 0.0 else high
            if ramp:
                work -= ramp * expm1(-work / ramp)
            high, low = work, floor_s + key_s * (kv_max + step)
            if high < low:
                high, low = low, high
            times.append(high * (1.0 + (low / high) ** power) ** of_power if low > 0.0 else high)
        return times

    def tokens_s(self, num_tokens: int) -> float:
        """Seconds of what depends on the number of tokens alone: dense layers, experts, element-wise, all-reduces."""
        time = self._tokens_s.get(num_tokens)
        if time is None:
            counts = _around(num_tokens)
            tokens = np.array(counts, dtype=np.float64)
            times = self.dense_s(tokens) + self.experts_s(tokens) + self.elementwise_s(tokens)
            layers = 2 * self.shape.num_hidden_layers
            for count, rest in zip(counts, times.tolist(), strict=True):
                self._tokens_s[count] = rest + layers * self.all_reduce_s(count * self.shape.hidden_size)
            time = self._tokens_s[num_tokens]
        return time

    def sampled_s(self, num_sampled: int) -> float:
        """Seconds of the language-model head and of sampling, for rows that sample."""
        time = self._rows_s.get(num_sampled)
        if time is None:
            if not num_sampled:
                return 0.0
            counts = _around(num_sampled)
            heads = self._matmuls_s(np.array(counts, dtype=np.float64), self._head.n, self._head.k)
            for count, head in zip(counts, heads.tolist(), strict=True):
                gather = self.all_reduce_s(count * self.shape.vocab_size) / 2  # half a sum's traffic
                self._rows_s[count] = head + self.sampling_s(count) + gather
            time = self._rows_s[num_sampled]
        return time

    def sampling_s(self, num_sampled: int) -> float:
        """Seconds of choosing a token for each of so many rows of logits."""
        term = self.gpu.sampling
        return _norm(num_sampled * self.shape.vocab_size / term.logits_per_s, term.floor_s, term.power)

    def host_s(self, num_rows: int) -> float:
        """Seconds in which the GPU waits for the host."""
        return self.gpu.host.step_s + self.gpu.host.request_s * num_rows

    def dense_s(self, num_tokens: Floats) -> Floats:
        """Seconds of all dense matmuls of all layers, routers and shared experts included; both float64[n]."""
        time = np.zeros(len(num_tokens))
        for count, product in self._matmuls:
            if count:
                time += count * self._matmuls_s(num_tokens, product.n, product.k)
        return time

    def experts_s(self, num_tokens: Floats) -> Floats:
        """Seconds of all layers' experts; both float64[n].

        Tokens choose among E experts evenly and on their own, so T tokens with k choices each touch
        ``E (1 - (1 - k/E)^T)`` of them; the weights of those are read, and each choice is computed.
        """
        time = np.zeros(len(num_tokens))
        total, chosen = self.shape.num_experts, self.shape.num_experts_per_tok
        for count, product in self._experts:
            active = (
                total * -np.expm1(num_tokens * math.log1p(-chosen / total))
                if chosen < total
                else np.full(len(time), float(total))
            )
            time += count * self._matmuls_s(num_tokens * chosen, product.n, product.k, active)
        return time

    def matmul_s(self, m: float, n: int, k: int, num_matrices: float = 1.0) -> float:
        """Seconds of ``[m, k] x [k, n]``, or of one such product whose rows are spread over several matrices."""
        return float(self._matmuls_s(np.array([m], dtype=np.float64), n, k, num_matrices)[0])

    def _matmuls_s(self, m: Floats, n: int, k: int, num_matrices: Floats | float = 1.0) -> Floats:
        return matmul_seconds(self.gpu.gemm, self.gpu.num_sms, m, n, k, num_matrices, self.shape.dtype_bytes)

    def elementwise_s(self, num_tokens: Floats) -> Floats:
        """Seconds of norms, rotary embeddings and activations of all layers; both float64[n]."""
        term = self.gpu.elementwise
        moved = num_tokens * self._elementwise_bytes / term.bandwidth
        return self.shape.num_hidden_layers * np.sqrt(term.layer_floor_s**2 + moved**2)

    def all_reduce_s(self, num_elements: int) -> float:
        """Seconds of one sum over the GPUs; 0 on one."""
        n = self.tensor_parallel
        if n == 1:
            return 0.0
        link = self.gpu.all_reduce
        return link.latency_s + 2 * (n - 1) / n * num_elements * self.shape.dtype_bytes / link.bandwidth


def _around(count: int) -> range:
    """The block of counts that a count lies in: many at once take little longer than one."""
    first = (count - 1) // _BLOCK * _BLOCK + 1
    return range(first, first + _BLOCK)


def _norm(a: float, b: float, power: float) -> float:
    """``(a^power + b^power)^(1/power)``, taken relative to the larger so that nothing under- or overflows."""
    if a < b:
        a, b = b, a
    if b <= 0.0:
        return a
    return float(a * (1.0 + (b / a) ** power) ** (1.0 / power))
