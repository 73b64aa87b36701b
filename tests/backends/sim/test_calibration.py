"""Fits: they find constants that made the data, and the catalogue's reproduce the tables as it says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from batchwright.errors import ConfigError
from batchwright_backends.sim.calibration import calibrate, predict_rows
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.fitting import least_squares, residual
from batchwright_backends.sim.gpus import find_gpu
from batchwright_backends.sim.kernel_tables import AttentionRow, KernelTables, MatmulRow, read_tables, split_rows
from batchwright_backends.sim.models import find_model

SHAPE = find_model("llama-3.1-8b")
SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fit_sim_constants.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_sim_constants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_least_squares_finds_a_law_through_disturbed_rows() -> None:
    x = np.linspace(1, 100, 60)
    measured = 3.0 * x + 40.0
    measured[::10] *= 3  # six rows that were disturbed
    found = least_squares(lambda c: c["slope"] * x + c["floor"], {"slope": 1.0, "floor": 1.0}, measured)
    assert found["slope"] == pytest.approx(3.0, rel=0.1)
    assert found["floor"] == pytest.approx(40.0, rel=0.1)


def test_residuals_are_relative() -> None:
    judged = residual([1.1, 1.8], [1.0, 2.0])
    assert (judged.num_rows, judged.mean, judged.bias) == (2, pytest.approx(0.1), pytest.approx(0.0))
    assert str(residual([1.25], [1.0])) == "mean 25.0%, p90 25.0%, bias +25.0%, 1 rows"


def test_a_fit_finds_the_constants_that_made_the_data() -> None:
    truth = find_gpu("h100")
    start = find_gpu("l40s").model_copy(update={"num_sms": truth.num_sms})
    cost = CostModel(SHAPE, truth)
    tables = KernelTables()
    for m in (1, 4, 16, 64, 100, 256, 300, 1024, 4096):
        for n, k in ((4096, 4096), (28672, 4096), (4096, 14336)):
            tables.matmul.append(MatmulRow(m, n, k, cost.matmul_s(m, n, k)))
    batches = [(0, 0, 0, n, c) for n in (1, 4, 16, 64, 200) for c in (10, 100, 1000, 5000)]
    batches += [(b, q, c, 0, 0) for b in (1, 4) for q in (16, 100, 500, 2000) for c in (0, 1000, 8000)]
    batches += [(1, q, c, n, k) for q in (8, 500) for c in (0, 4000) for n in (2, 30) for k in (500, 3000)]
    for batch in batches:
        row = AttentionRow(*batch, 0.0)
        seconds = cost.attention_s(row.num_rows, row.num_tokens, row.load(truth.chunk_attention.tile))
        tables.attention.append(AttentionRow(*batch, seconds))
    done = calibrate(tables, SHAPE, start)
    assert done.terms["gemm"]["flops"] == pytest.approx(truth.gemm.flops, rel=0.01)
    assert done.terms["gemm"]["bandwidth"] == pytest.approx(truth.gemm.bandwidth, rel=0.01)
    assert done.terms["decode_attention"]["bandwidth"] == pytest.approx(truth.decode_attention.bandwidth, rel=0.03)
    assert done.terms["chunk_attention"]["flops"] == pytest.approx(truth.chunk_attention.flops, rel=0.03)
    assert max(judged.p90 for judged in done.held_out.values()) < 0.03


def test_a_row_of_one_token_is_a_decode_whatever_table_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "x_context_attention_y.csv").write_text("batch_size,isl,step,latency\n4,1,0,0.01\n4,64,0,0.02\n")
    tables = read_tables(tmp_path, SHAPE)
    assert [(r.regime, r.num_rows, r.num_tokens, r.kv_tokens) for r in tables.attention] == [
        ("generation", 4, 4, 4),
        ("context", 4, 256, 256),
    ]
    assert tables.attention[0].time_s == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,n,k,latency\n1,2,3,0.5\n1,2,x,0.5\n", "line 3: k should be a whole number of at least 0 and is 'x'"),
        ("m,n,k,latency\n1,2,3,nan\n", "line 2: latency should be a time above 0 and is 'nan'"),
        ("m,n,k,latency\n1.5,2,3,1\n", "line 2: m should be a whole number"),
        ("m,n,latency\n1,2,3\n", "line 1: there is no column 'k'; expected the columns m,n,k,latency"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x_gemm_y.csv").write_text(text)
    with pytest.raises(ConfigError, match=f"x_gemm_y.csv', {said}"):
        read_tables(tmp_path, SHAPE)
    with pytest.raises(ConfigError, match=r"no kernel table .*begins with 'h100_'; expected \*_gemm_\*.csv"):
        read_tables(tmp_path, SHAPE, "h100_")


def test_every_fifth_row_is_kept_from_the_fit() -> None:
    rows = [MatmulRow(i, 1, 1, 1.0) for i in range(12)]
    train, held_out = split_rows(rows)
    assert [r.m for r in held_out] == [4, 9]
    assert sorted(r.m for r in train + held_out) == list(range(12))


STATED = re.compile(r"([a-z][a-z ]*): mean ([\d.]+)%, p90 ([\d.]+)%")


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_constants_reproduce_their_tables_as_the_catalogue_says(name: str, kernel_folder: Path) -> None:
    judged = judge(name, read_tables(kernel_folder, SHAPE, f"{name}_"), None)
    assert set(judged) == {"gemm", "generation attention", "context attention"}
    for regime in ("generation attention", "context attention"):
        assert judged[regime][0] < 0.06
        assert judged[regime][1] < 0.15
    # Their tables scatter: a law for each n and k that has seen all other rows has 4.0, 4.7 and 4.5% (neighbours)
    assert judged["gemm"][0] < {"a100": 0.05, "h100": 0.067, "h200": 0.057}[name]


def test_rtx4090_constants_reproduce_their_tables(rtx4090_folder: Path) -> None:
    judged = judge("rtx4090", read_tables(rtx4090_folder, SHAPE), 65536)
    assert judged["gemm"][0] < 0.03
    assert judged["gemm"][1] < 0.08
    assert judged["mixed attention"][0] < 0.09
    assert {"elementwise", "sampling"} <= set(judged)


def judge(name: str, tables: KernelTables, max_kv_tokens: int | None) -> dict[str, tuple[float, float]]:
    """Mean and p90 of held-out rows under the catalogue's constants, checked against what it states."""
    gpu = find_gpu(name)
    regimes = {
        "gemm": ("gemm", tables.matmul),
        "elementwise": ("elementwise", tables.elementwise),
        "sampling": ("sampling", tables.sampling),
    }
    judged = {}
    attention = [r for r in tables.attention if max_kv_tokens is None or r.kv_tokens <= max_kv_tokens]
    for regime in ("generation", "context", "mixed"):
        term = "decode_attention" if regime == "generation" else "chunk_attention"
        regimes[f"{regime} attention"] = (term, [r for r in attention if r.regime == regime])
    for regime, (term, rows) in regimes.items():
        if not rows:
            continue
        held_out = split_rows(rows)[1]
        seen = residual(predict_rows(held_out, SHAPE, gpu, term), [r.time_s for r in held_out])
        stated = {m[1].removeprefix("held-out rows, "): m for m in STATED.finditer(getattr(gpu, term).residual)}
        assert 100 * seen.mean == pytest.approx(float(stated[regime][2]), abs=0.2), regime
        assert 100 * seen.p90 == pytest.approx(float(stated[regime][3]), abs=0.5), regime
        judged[regime] = (seen.mean, seen.p90)
    return judged


def test_the_script_finds_the_constants_of_the_catalogue(
    kernel_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script().main(["--gpu", "a100", "--data", str(kernel_folder.parent)]) == 0
    printed = capsys.readouterr().out
    for term in ("gemm", "generation attention", "context attention"):
        assert re.search(rf"a100 +{term} +held out: mean \d", printed)
    gpu = find_gpu("a100")
    for regime, found in (("gemm", gpu.gemm), ("context attention", gpu.chunk_attention)):
        stated = found.residual.partition(f"{regime}: ")[2].partition(", bias")[0]
        assert f"held out: {stated}" in printed
    assert re.search(r"gemm, equal kernels +mean 3\.0%", printed)
    assert re.search(r"gemm, neighbours +mean \d", printed)


def test_the_script_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script().main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "there are no kernel tables" in capsys.readouterr().err


def test_a_monotone_law_and_equal_products_bound_a_fit() -> None:
    module = script()
    rows = [MatmulRow(m, 1, 1, t) for m, t in ((1, 1.0), (2, 1.2), (3, 1.0), (17, 2.0), (18, 2.0))]
    assert module.isotonic([1.0, 1.2, 1.0, 2.0]) == pytest.approx([1.0, 1.2**0.5, 1.2**0.5, 2.0])
    assert module.monotone(rows).mean == pytest.approx((1 - 1.2**-0.5 + 1.2**0.5 - 1) / 5)
    equal = module.equal_kernels(rows)
    assert (equal.num_rows, equal.mean) == (5, pytest.approx((1 - 1 / 1.2) / 5))
    assert module.equal_kernels(rows[:1]) is None
