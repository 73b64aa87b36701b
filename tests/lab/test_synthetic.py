"""Synthetic workloads: what is drawn has the rate, burstiness and lengths that were asked for."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.errors import WorkloadError
from batchwright.lab import load_workload, synthetic
from batchwright.lab.lengths import Lengths
from batchwright.lab.synthetic import SyntheticSpec


def gaps(spec: str) -> np.ndarray:
    arrivals = [r.arrival_ns / 1e9 for r in load_workload(spec).rows]
    return np.diff(arrivals, prepend=0)


@pytest.mark.parametrize("rate", [0.5, 4, 1000])
@pytest.mark.parametrize("burstiness", [0.3, 1, 5])
def test_the_last_arrival_is_at_n_over_rate(rate, burstiness) -> None:
    workload = load_workload(f"synthetic:rate={rate},n=50,burstiness={burstiness}")
    assert len(workload) == 50
    assert workload.span_s == pytest.approx(50 / rate, rel=1e-9)


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_gaps_vary_as_burstiness_says(burstiness) -> None:
    found = gaps(f"synthetic:rate=10,n=20000,burstiness={burstiness},seed=3")
    assert found.mean() == pytest.approx(0.1, rel=1e-6)
    assert found.std() / found.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_poisson_process_has_exponential_gaps() -> None:
    found = np.sort(gaps("synthetic:rate=1,n=20000,seed=5"))
    distance = np.abs(1 - np.exp(-found) - np.arange(1, 20001) / 20000).max()
    assert distance < 1.63 / math.sqrt(20000)  # Kolmogorov-Smirnov at 1%


def test_an_infinite_rate_lets_all_arrive_at_once() -> None:
    assert {r.arrival_ns for r in load_workload("synthetic:rate=inf,n=10").rows} == {0}


def test_lengths() -> None:
    spec = "synthetic:n=20000,prompt=lognormal(500,0.8),output=uniform(16,128)"
    rows = load_workload(spec).rows
    prompts = np.array([r.num_prompt_tokens for r in rows])
    outputs = np.array([r.num_output_tokens for r in rows])
    assert np.median(prompts) == pytest.approx(500, rel=0.03)
    assert np.log(prompts).std() == pytest.approx(0.8, rel=0.03)
    assert outputs.min() == 16
    assert outputs.max() == 128
    assert outputs.mean() == pytest.approx(72, rel=0.01)


def test_a_lognormal_is_cut_where_asked() -> None:
    rows = load_workload("synthetic:n=2000,prompt=lognormal(500,1.5,1000)").rows
    lengths = [r.num_prompt_tokens for r in rows]
    assert max(lengths) == 1000
    assert min(lengths) >= 1


@pytest.mark.parametrize("form", ["64", "fixed(64)"])
def test_fixed_lengths(form) -> None:
    assert {r.num_output_tokens for r in load_workload(f"synthetic:n=5,output={form}").rows} == {64}


@given(
    st.one_of(
        st.builds("{}".format, st.integers(1, 9999)),
        st.builds(lambda a, b: f"uniform({min(a, b)},{max(a, b)})", st.integers(1, 999), st.integers(1, 999)),
        st.builds("lognormal({},{})".format, st.integers(1, 9999), st.floats(0, 3)),
    ),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_every_length_is_at_least_1(form, seed) -> None:
    lengths = Lengths.parse("prompt", form).draw(np.random.default_rng(seed), 50)
    assert lengths.min() >= 1
    assert lengths.dtype == np.int64


def test_prefixes_and_clients() -> None:
    rows = load_workload("synthetic:n=400,prompt=10,prefix=64,prefixes=4,clients=3").rows
    assert {r.num_prompt_tokens for r in rows} == {74}
    assert {r.prefix_ids for r in rows} == {(0,), (1,), (2,), (3,)}
    assert {r.prefix_block_size for r in rows} == {64}
    assert {r.client_id for r in rows} == {"c0", "c1", "c2"}
    plain = load_workload("synthetic:n=4").rows
    assert {(r.prefix_ids, r.client_id, r.max_tokens) for r in plain} == {((), None, None)}
    assert {r.max_tokens for r in load_workload("synthetic:n=4,max_tokens=99").rows} == {99}


def test_the_same_specification_draws_the_same_workload() -> None:
    spec = (
        "synthetic:rate=4,n=100,prompt=lognormal(512,0.8),output=uniform(16,128),burstiness=0.5,prefix=64,prefixes=4,"
        "clients=3"
    )
    assert load_workload(f"{spec},seed=1").rows == load_workload(f"{spec},seed=1").rows
    assert load_workload(f"{spec},seed=1").hash != load_workload(f"{spec},seed=2").hash


def test_each_quantity_has_a_stream_of_its_own() -> None:
    one = load_workload("synthetic:n=50,prompt=uniform(1,99),output=uniform(1,99),clients=5,seed=1").rows
    two = load_workload("synthetic:n=50,prompt=uniform(1,99),output=lognormal(9,1),clients=5,seed=1,burstiness=2").rows
    assert [r.num_prompt_tokens for r in one] == [r.num_prompt_tokens for r in two]
    assert [r.client_id for r in one] == [r.client_id for r in two]
    assert [r.num_output_tokens for r in one] != [r.num_output_tokens for r in two]
    assert [r.arrival_ns for r in one] != [r.arrival_ns for r in two]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("rat=4", "has no 'rat'; did you mean 'rate'"),
        ("rate=4,rate=5", "gives 'rate' twice"),
        ("rate", "'rate' in a synthetic workload is not key=value; for example synthetic:"),
        ("rate=0", "rate of a synthetic workload is '0'; expected a number above 0, or inf"),
        ("rate=nan", "rate of a synthetic workload is 'nan'"),
        ("burstiness=inf", "expected a finite number above 0"),
        ("n=0", "n of a synthetic workload is '0'; expected a whole number of at least 1"),
        ("n=1.5", "expected a whole number of at least 1"),
        ("seed=-1", "expected a whole number of at least 0"),
        (
            "prompt=normal(1,2)",
            "prompt of a synthetic workload is 'normal(1,2)'; expected N or fixed(N); uniform(LOW,HIGH)",
        ),
        ("output=uniform(9,1)", "output of a synthetic workload is 'uniform(9,1)'"),
        ("output=uniform(0,1)", "with lengths of at least 1"),
        ("output=uniform(1)", "output of a synthetic workload is"),
        ("output=0", "output of a synthetic workload is '0'"),
        ("output=lognormal(512)", "output of a synthetic workload is"),
        ("output=lognormal(512,-1)", "output of a synthetic workload is"),
        ("output=lognormal(512,inf)", "output of a synthetic workload is"),
        ("output=uniform(1,2", "output of a synthetic workload is"),
    ],
)
def test_a_wrong_specification_is_told_what_is_right(spec, says) -> None:
    with pytest.raises(WorkloadError) as error:
        load_workload(f"synthetic:{spec}")
    assert says in str(error.value)


def test_an_empty_specification_takes_the_defaults() -> None:
    workload = load_workload("synthetic:")
    assert len(workload) == 100
    assert workload.name == "synthetic:"


@pytest.mark.parametrize(
    "spec",
    [
        "rate=4,prompt=lognormal(512,0.8),output=uniform(16,128),burstiness=0.5,seed=1",
        "rate=inf,prompt=zipf(1.2,4096),output=exponential(200,900),prefix=32,prefixes=7,clients=3",
        "rate=3,burstiness=0.001,shape=onoff(10,20),prompt=uniform(1,70000)",
        "rate=3,shape=ramp(1,5)",
        "rate=3,shape=constant",
    ],
)
def test_rows_are_the_same_however_many_are_drawn_at_once(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = SyntheticSpec.parse(f"synthetic:n=100,{spec}")
    whole = list(drawn.draw())
    monkeypatch.setattr(synthetic, "_CHUNK", 7)
    assert list(drawn.draw()) == whole


def test_rows_that_are_still_to_come_take_no_memory() -> None:
    def held(num: int) -> int:
        rows = SyntheticSpec.parse(f"synthetic:n={num},prompt=uniform(16,256),output=uniform(8,64)").draw()
        next(rows)
        tracemalloc.start()
        rows = SyntheticSpec.parse(f"synthetic:n={num},prompt=uniform(16,256),output=uniform(8,64)").draw()
        next(rows)
        found, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    assert held(400_000) < held(20_000) + 100_000  # bytes; a column of numbers for each took 3 MB
