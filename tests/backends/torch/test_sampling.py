from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.batch import SamplingArrays
from batchwright_backends.torch import sampling
from batchwright_backends.torch.inputs import DirectUpload
from batchwright_backends.torch.sampling import SamplingPlan, uniform


def params(rows: int, **columns: Any) -> SamplingArrays:
    def column(name: str, default: Any, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(columns.pop(name, default), dtype=dtype), (rows,)).copy()

    out = SamplingArrays(
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        seed=column("seed", 0, np.uint64),
        output_index=column("output_index", 0, np.int64),
        logprobs=column("logprobs", -1, np.int32),
    )
    assert not columns
    return out


def sample(logits: torch.Tensor, params: SamplingArrays) -> tuple[torch.Tensor, torch.Tensor]:
    return sampling.sample(logits, SamplingPlan(params, DirectUpload(logits.device)))


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Probabilities by the plain definition: sorted by (probability, lower id first), cut one after another."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.lexsort((np.arange(len(weights)), -weights))
    order = order[weights[order] >= min_p]
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        sums = np.cumsum(weights[order]) / weights[order].sum()
        order = order[: int((sums < top_p).sum()) + 1]
    out = np.zeros_like(weights)
    out[order] = weights[order]
    return out / out.sum()


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10_000},
    {"top_p": 0.6},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"top_k": 9, "top_p": 0.7},
    {"min_p": 0.05, "top_k": 12, "top_p": 0.9, "temperature": 1.5},
]


@pytest.mark.parametrize("way", ["cpu", "few", "gpu"])
@pytest.mark.parametrize("options", FILTERS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "plain")
def test_the_distribution_is_the_filtered_softmax(
    options: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "few":
        monkeypatch.setattr(sampling, "FEW", 2)
    elif way == "gpu":
        monkeypatch.setattr(sampling, "_is_cpu", lambda tensor: False)
    logits = np.random.default_rng(0).normal(0, 2, 40).astype(np.float32)
    want = reference(logits, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options})
    draws = 20_000
    rows = torch.from_numpy(logits).expand(draws, -1)
    tokens, finite = sample(rows, params(draws, output_index=np.arange(draws), seed=5, **options))
    assert finite.all()
    got = np.bincount(tokens.numpy(), minlength=len(logits)) / draws
    assert set(np.flatnonzero(got)) <= set(np.flatnonzero(want))
    assert np.abs(got - want).max() < 5 * np.sqrt(0.25 / draws)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_first_of_the_best(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[2, [4, 30]] = 9.0
    tokens, _ = sample(logits, params(6, temperature=[0, 0, 0, 1e-7, 0, 0]))
    assert tokens.tolist() == logits.float().numpy().argmax(-1).tolist()
    assert tokens[2] == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 255, 256, 257, 512, 1000])
def test_greedy_whatever_the_chunks(vocabulary: int, dtype: torch.dtype) -> None:
    logits = torch.randn(40, vocabulary, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[1] = -torch.inf
    logits[2, vocabulary // 2 :] = 9.0
    logits[3] = torch.nan
    logits[4] = -torch.inf
    logits[4, -1] = -3e4
    tokens, finite = sample(logits, params(40, temperature=[0.0] * 40))
    assert finite.tolist() == [i not in (1, 3, 4) or (i == 4 and vocabulary == 1) for i in range(40)]
    others = [i for i in range(40) if i != 3]
    assert tokens[others].tolist() == logits[others].float().numpy().argmax(-1).tolist()
    assert 0 <= int(tokens[3]) < vocabulary


@pytest.mark.parametrize("chunk", [1, 7, 16, 40, 64])
def test_a_draw_is_where_the_running_sum_exceeds_it(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the chunks, and where whole chunks have no weight."""
    monkeypatch.setattr(sampling, "CHUNK", chunk)
    rng = np.random.default_rng(3)
    weights = rng.random((400, 40)) * (rng.random((400, 40)) < 0.3)
    weights[:, 20:28] = 0.0
    weights[:, 13] += 1e-3
    weights = weights.astype(np.float32)
    share = np.concatenate((rng.random(398), [0.0, 1 - 2**-53]))
    got = sampling._first_past(torch.from_numpy(weights), torch.from_numpy(share)[:, None]).numpy()
    sums = weights.astype(np.float64).cumsum(-1)
    want = (sums <= share[:, None] * sums[:, -1:]).sum(-1)
    assert (np.take_along_axis(weights, got[:, None], 1) > 0).all()
    assert (got[:-1] == want[:-1]).all()
    assert got[-1] == np.flatnonzero(weights[-1])[-1]


def test_of_equal_tokens_the_lower_id_is_the_likelier() -> None:
    logits = torch.zeros(300, 12)
    logits[:, 5] = 3.0
    for options, allowed in (({"top_k": 1}, {5}), ({"top_k": 3}, {0, 1, 5}), ({"top_p": 0.7}, {0, 1, 5})):
        tokens, _ = sample(logits, params(300, output_index=np.arange(300), **options))
        assert set(tokens.tolist()) == allowed, options  # weight of 5: 20.1 of 31.1; with 0 and 1 just past 0.7


def test_top_p_of_flat_and_peaked_rows_together() -> None:
    logits = np.random.default_rng(1).normal(0, 0.3, 64).astype(np.float32)
    peak = logits.copy()
    peak[3] = 40.0
    both = torch.from_numpy(np.stack([logits, peak] * 2000))
    tokens, _ = sample(both, params(4000, top_p=0.8, output_index=np.arange(4000)))
    assert set(tokens[1::2].tolist()) == {3}
    assert set(tokens[::2].tolist()) == set(np.flatnonzero(reference(logits, 1.0, 0, 0.8, 0.0)))


@pytest.mark.parametrize("way", ["cpu", "few", "gpu"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_draw_depends_on_its_own_row_alone(way: str, data: st.DataObject) -> None:
    """Each in any way of cutting: alone and together, whatever the others want, it is the same token."""
    rows = data.draw(st.integers(2, 8))
    options = [
        {
            "temperature": data.draw(st.sampled_from([0.0, 0.3, 1.0, 20.0])),
            "top_k": data.draw(st.sampled_from([0, 1, 5, 500])),
            "top_p": data.draw(st.sampled_from([1.0, 0.9, 0.2])),
            "min_p": data.draw(st.sampled_from([0.0, 0.1])),
            "seed": data.draw(st.integers(0, 2**63)),
            "output_index": data.draw(st.integers(0, 5000)),
        }
        for _ in range(rows)
    ]
    spread = data.draw(st.sampled_from([0.1, 3.0]))
    logits = torch.from_numpy(np.random.default_rng(rows).normal(0, spread, (rows, 100)).astype(np.float32))
    if data.draw(st.booleans()):
        logits = logits.round(decimals=0)  # many of the same weight
    alone = [sample(logits[i : i + 1], params(1, **options[i]))[0].item() for i in range(rows)]
    with pytest.MonkeyPatch.context() as patch:
        if way == "few":
            patch.setattr(sampling, "FEW", 1)
        elif way == "gpu":
            patch.setattr(sampling, "_is_cpu", lambda tensor: False)
        together, _ = sample(logits, params(rows, **{k: [o[k] for o in options] for k in options[0]}))
    assert together.tolist() == alone


def test_uniform_numbers() -> None:
    index = np.arange(200_000)
    u = uniform(np.full(len(index), 3, dtype=np.uint64), index)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    assert ((counts - len(u) / 64) ** 2 / (len(u) / 64)).sum() < 120  # chi-square, 63 degrees of freedom: p < 1e-5
    neighbour = uniform(np.full(len(index), 4, dtype=np.uint64), index)
    for shift in (0, 1, 2):
        a, b = u[shift:], neighbour[: len(u) - shift]
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


def test_uniform_is_splitmix64() -> None:
    """Against Python's integers; and two numbers written down: a later change must not give a seed other tokens."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    step = 0x9E3779B97F4A7C15
    assert mix(step) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from state 0, as published
    for seed, index in ((0, 0), (1, 7), (2**64 - 1, 2**31), (123456789, 4095)):
        want = (mix((mix((seed + step) % 2**64) + step * (index + 1)) % 2**64) >> 11) / 2**53
        assert uniform(np.array([seed], dtype=np.uint64), np.array([index]))[0] == want
    assert uniform(np.array([0, 1], dtype=np.uint64), np.array([0, 7])).tolist() == [
        0.6524484863740322,
        0.24696520214533768,
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_are_told(temperature: float) -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    want, _ = sample(logits, params(5, temperature=temperature, seed=range(5), top_p=0.9))
    logits[1, 4], logits[3, 0], logits[4, 29] = torch.nan, torch.inf, -torch.inf
    got, finite = sample(logits, params(5, temperature=temperature, seed=range(5), top_p=0.9))
    assert finite.tolist() == [True, False, True, False, False]
    assert got[[0, 2]].tolist() == want[[0, 2]].tolist()
    assert ((got >= 0) & (got < 30)).all()


def test_extreme_logits_and_temperatures() -> None:
    logits = torch.tensor([[1e30, -1e30, 1e30, 0.0]]).repeat(50, 1)
    for temperature in (1.1e-5, 1.0, 100.0):
        tokens, finite = sample(logits, params(50, temperature=temperature, output_index=range(50)))
        assert finite.all() and set(tokens.tolist()) == {0, 2}
