"""The cost model: sane, monotone, deterministic, and near physical bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.gpus import find_gpu, gpu_names
from batchwright_backends.sim.load import attention_load, sliding_load
from batchwright_backends.sim.models import find_model, model_names

# rows of a batch: (computed, scheduled)
ROWS = st.lists(st.tuples(st.integers(0, 20_000), st.one_of(st.just(1), st.integers(1, 3000))), min_size=1, max_size=30)
SLIDING = find_model("mistral-7b").model_copy(update={"sliding_window": 1000, "num_sliding_layers": 20})
MODELS = [find_model("llama-3.1-8b"), find_model("qwen3-30b-a3b"), SLIDING]
COSTS = [CostModel(shape, find_gpu(gpu)) for shape in MODELS for gpu in ("h100", "a100", "rtx4090", "l4")]
ANY_COST = st.sampled_from(COSTS)


def step_ns(cost: CostModel, rows: list[tuple[int, int]], num_sampled: int | None = None) -> int:
    computed = np.array([c for c, _ in rows], dtype=np.int32)
    scheduled = np.array([q for _, q in rows], dtype=np.int32)
    sampled = len(rows) if num_sampled is None else num_sampled
    return cost.step_ns(cost.load(computed, scheduled, int(scheduled.sum()), sampled))


@given(ANY_COST, ROWS, st.data())
def test_more_tokens_are_never_faster(cost: CostModel, rows: list[tuple[int, int]], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(rows) - 1))
    more = data.draw(st.integers(1, 500))
    c, q = rows[i]
    longer = [*rows[:i], (c, q + more), *rows[i + 1 :]]
    assert step_ns(cost, longer) >= step_ns(cost, rows)


@given(ANY_COST, ROWS, st.data())
def test_a_longer_context_is_never_faster(cost: CostModel, rows: list[tuple[int, int]], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(rows) - 1))
    c, q = rows[i]
    longer = [*rows[:i], (c + data.draw(st.integers(1, 5000)), q), *rows[i + 1 :]]
    assert step_ns(cost, longer) >= step_ns(cost, rows)


@given(ANY_COST, ROWS, st.tuples(st.integers(0, 20_000), st.integers(1, 3000)))
def test_one_more_row_is_never_faster(cost: CostModel, rows: list[tuple[int, int]], row: tuple[int, int]) -> None:
    assert step_ns(cost, [*rows, row]) >= step_ns(cost, rows)


@given(ANY_COST, ROWS, st.randoms())
def test_the_order_of_rows_is_nothing_and_a_second_model_agrees(
    cost: CostModel, rows: list[tuple[int, int]], random: object
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = CostModel(cost.shape, cost.gpu, cost.tensor_parallel)
    assert step_ns(cost, shuffled) == step_ns(cost, rows) == step_ns(again, rows)


@given(ANY_COST, ROWS, st.integers(0, 30))
def test_rows_that_do_not_sample_cost_less(cost: CostModel, rows: list[tuple[int, int]], sampled: int) -> None:
    sampled = min(sampled, len(rows))
    assert step_ns(cost, rows, sampled) <= step_ns(cost, rows)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen3-32b", "mixtral-8x7b"])
@pytest.mark.parametrize("gpu", ["h100", "a100", "b200"])
def test_more_gpus_are_never_slower_where_there_is_work(model: str, gpu: str) -> None:
    costs = [CostModel(find_model(model), find_gpu(gpu), n) for n in (1, 2, 4, 8)]
    for rows in ([(0, 2048)], [(2000, 1)] * 128, [(0, 1024), *[(1500, 1)] * 64]):
        times = [step_ns(cost, rows) for cost in costs]
        assert times == sorted(times, reverse=True)
        assert times[-1] > times[0] / 8  # and never better than evenly split, since all-reduces and floors remain


def test_an_all_reduce_is_paid_for() -> None:
    shape, gpu = find_model("llama-3.1-8b"), find_gpu("h100")
    link = gpu.all_reduce
    assert CostModel(shape, gpu).all_reduce_s(4096) == 0
    assert CostModel(shape, gpu, 4).all_reduce_s(10**6) == pytest.approx(
        link.latency_s + 2 * 3 / 4 * 2e6 / link.bandwidth
    )


def test_nothing_takes_no_time() -> None:
    empty = np.zeros(0, dtype=np.int32)
    assert COSTS[0].step_ns(COSTS[0].load(empty, empty, 0, 0)) == 0


@given(ROWS, st.integers(1, 64), st.integers(1, 4000))
def test_sums_against_counting_pairs(rows: list[tuple[int, int]], tile: int, window: int) -> None:
    rows = [(c % 3000, q % 300 + 1) for c, q in rows]
    computed = np.array([c for c, _ in rows], dtype=np.int32)
    scheduled = np.array([q for _, q in rows], dtype=np.int32)

    def pairs(c: int, q: int, reach: float) -> float:
        total = sum(min(c + j, reach) for j in range(1, q + 1))
        return total * max(q, tile) / q

    full = attention_load(computed, scheduled, int(scheduled.sum()), tile)
    assert full.kv_tokens == sum(c + q for c, q in rows)
    assert full.kv_max == max(c + q for c, q in rows)
    assert full.chunk_area == pytest.approx(sum(pairs(c, q, math.inf) for c, q in rows if q > 1))
    if any(q > 1 for _, q in rows):
        assert full.chunk_kv_tokens == sum(c + q for c, q in rows if q > 1)
    slid = sliding_load(computed, scheduled, tile, window)
    assert slid.chunk_area == pytest.approx(sum(pairs(c, q, window) for c, q in rows if q > 1))
    assert slid.kv_max == max(min(c + q, window + q - 1) for c, q in rows)
    assert slid.kv_tokens == sum(min(c + q, window + q - 1) for c, q in rows)


def test_many_chunks_sum_as_few_do() -> None:
    rows = [(100 * i, 3 + 7 * i) for i in range(12)]
    computed, scheduled = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    whole = attention_load(computed, scheduled, int(scheduled.sum()), 37)
    halves = [attention_load(computed[s], scheduled[s], int(scheduled[s].sum()), 37) for s in (slice(6), slice(6, 12))]
    assert whole.chunk_area == halves[0].chunk_area + halves[1].chunk_area
    assert whole.chunk_kv_tokens == halves[0].chunk_kv_tokens + halves[1].chunk_kv_tokens


def test_a_window_that_is_never_reached_changes_nothing() -> None:
    plain = SLIDING.model_copy(update={"sliding_window": None, "num_sliding_layers": 0})
    wide = SLIDING.model_copy(update={"sliding_window": 100_000})
    gpu = find_gpu("h100")
    rows = [(5000, 1)] * 40 + [(300, 700), (0, 16)]
    assert step_ns(CostModel(wide, gpu), rows) == pytest.approx(step_ns(CostModel(plain, gpu), rows), rel=1e-9)
    assert step_ns(CostModel(SLIDING, gpu), rows) < step_ns(CostModel(plain, gpu), rows)


def test_decode_of_llama_8b_on_an_h100_is_bound_by_its_weights() -> None:
    cost = CostModel(find_model("llama-3.1-8b"), find_gpu("h100"))
    seconds = step_ns(cost, [(1000, 1)]) / 1e9
    read = (8_030_261_248 - 128256 * 4096) * 2 / 3.35e12  # all weights but the embedding table
    assert read == pytest.approx(4.5e-3, rel=0.02)
    assert read < seconds < 2 * read  # vLLM's batch of one takes 6.5 to 8 ms
    assert step_ns(cost, [(1000, 1)] * 32) < 1.5 * step_ns(cost, [(1000, 1)])  # batching is nearly free


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b", "smollm2-135m", "mixtral-8x7b"])
def test_no_step_beats_the_datasheet(gpu: str, model: str) -> None:
    shape, known = find_model(model), find_gpu(gpu)
    cost = CostModel(shape, known)
    embedding = shape.vocab_size * shape.hidden_size
    active = shape.num_parameters - (0 if shape.tie_word_embeddings else embedding)
    active -= (
        (shape.num_experts - shape.num_experts_per_tok)
        * shape.num_moe_layers
        * 3
        * (shape.hidden_size * shape.moe_intermediate_size)
    )
    assert step_ns(cost, [(0, 1)]) / 1e9 >= shape.dtype_bytes * active / known.peak_bandwidth
    flops = 2 * 2048 * (active - embedding) + 4 * shape.num_hidden_layers * (
        shape.num_attention_heads * shape.head_dim * 2048 * 2049 / 2
    )
    assert step_ns(cost, [(0, 2048)]) / 1e9 >= flops / known.peak_flops


def test_experts_are_read_as_tokens_touch_them() -> None:
    cost = CostModel(find_model("qwen3-30b-a3b"), find_gpu("h100"))

    def experts_s(num_tokens: int) -> float:
        return float(cost.experts_s(np.array([float(num_tokens)]))[0])

    layer = cost.matmul_s
    one = 48 * (layer(8, 2 * 768, 2048, 8.0) + layer(8, 2048, 768, 8.0))
    assert experts_s(1) == pytest.approx(one)  # one token touches its 8 of 128
    touched = 128 * (1 - (120 / 128) ** 16)
    some = 48 * (layer(128, 2 * 768, 2048, touched) + layer(128, 2048, 768, touched))
    assert experts_s(16) == pytest.approx(some)
    all_read = 48 * (layer(80_000, 2 * 768, 2048, 128.0) + layer(80_000, 2048, 768, 128.0))
    assert experts_s(10_000) == pytest.approx(all_read)
    dense = find_model("qwen3-30b-a3b").model_copy(update={"num_experts": 0})
    assert not CostModel(dense, find_gpu("h100")).experts_s(np.array([10.0]))[0]


def test_products_run_in_waves_of_tiles() -> None:
    gpu = find_gpu("a100")
    gemm = gpu.gemm.model_copy(
        update={
            "floor_s": 0.0,
            "wave_s": 0.0,
            "edge": 1e4,
            "tail": 1.0,
            "power": 60.0,
            "read_tail": 0.0,
            "read_idle": 0.0,
        }
    )
    cost = CostModel(find_model("llama-3.1-8b"), gpu.model_copy(update={"gemm": gemm}))
    largest = 1 + 1e4 * (1 / 128 + 1 / 256)  # smaller tiles are much less efficient here
    whole = largest * 2 * 128 * 256 * 32768 / (gemm.flops / 108)
    assert cost.matmul_s(128 * 6, 256 * 18, 32768) == pytest.approx(whole, rel=0.02)  # one of them on each of 108
    # One row more: 126 tiles; split in six they run in 7 waves of a sixth
    assert cost.matmul_s(128 * 6 + 1, 256 * 18, 32768) == pytest.approx(7 / 6 * whole, rel=0.02)
    free = gpu.model_copy(update={"num_sms": None, "gemm": gemm})
    plain = CostModel(find_model("llama-3.1-8b"), free).matmul_s(128 * 6 + 1, 256 * 18, 32768)
    assert plain == pytest.approx(2 * 769 * 4608 * 32768 / gemm.flops, rel=0.02)  # without waves, operations count


def test_a_decode_beside_a_chunk_costs_more_than_among_decodes_on_flash_attention_2() -> None:
    cost = CostModel(find_model("llama-3.1-8b"), find_gpu("rtx4090"))
    decodes = [(2000, 1)] * 20

    def attention(rows: list[tuple[int, int]]) -> float:
        computed, scheduled = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
        load = cost.load(computed, scheduled, int(scheduled.sum()), 0)
        return cost.attention_s(load.num_rows, load.num_tokens, load.attention)

    chunk = [(0, 1024)]
    ratio = (attention([*decodes, *chunk]) - attention(chunk)) / attention(decodes)
    assert 1.2 < ratio < 2.2


@settings(max_examples=30)
@given(st.sampled_from(model_names()), st.sampled_from(gpu_names()), st.sampled_from([1, 17, 256, 8192]))
def test_every_model_on_every_gpu_has_a_finite_cost(model: str, gpu: str, num_tokens: int) -> None:
    cost = CostModel(find_model(model), find_gpu(gpu))
    assert 0 < step_ns(cost, [(0, num_tokens)]) < 10**11


@given(ANY_COST, st.lists(st.integers(0, 20_000), min_size=1, max_size=30), st.integers(1, 40))
def test_decodes_in_a_row_follow_from_two_sums(cost: CostModel, contexts: list[int], num_steps: int) -> None:
    n, kv, longest = len(contexts), sum(contexts) + len(contexts), max(contexts) + 1
    if cost.shape.num_sliding_layers:
        return
    for step in range(num_steps):
        stepped = step_ns(cost, [(c + step, 1) for c in contexts])
        assert round(1e9 * cost.decode_s(n, kv + step * n, longest + step)) == stepped
