"""``batchwright calibrate``: from a file to a machine, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import SMALL, Cli

BASE = "base.yaml"


@pytest.fixture(autouse=True)
def base(tmp_path: Path) -> None:
    """An H100 whose tiles are not counted, which is fitted in no time."""
    (tmp_path / BASE).write_text("model: llama-3.1-8b\ngpu: {base: h100, num_sms: null}\n")


def write_tables(folder: Path, prefix: str = "") -> Path:
    """Products whose times follow a law: 5 µs, and 1 ms a TFLOP or 0.5 ms a GB, whichever takes longer."""
    folder.mkdir(exist_ok=True)
    rows = ["m,n,k,latency"]
    for m in (1, 8, 64, 256, 1024, 4096, 8192):
        for n, k in ((4096, 4096), (28672, 4096), (4096, 14336)):
            flop, moved = 2 * m * n * k, 2 * (m * k + n * k + m * n)
            rows.append(f"{m},{n},{k},{5e-3 + max(flop * 1e-12, moved * 0.5e-9)}")
    (folder / f"{prefix}x_gemm_y.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_tables_become_a_machine_that_runs(cli: Cli, tmp_path: Path) -> None:
    tables, out = write_tables(tmp_path / "tables"), tmp_path / "mine.yaml"
    answer = cli("calibrate", tables, "--base", BASE, "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert "regime" in answer.out
    assert "gemm" in answer.out
    assert "no rows for decode_attention, chunk_attention, elementwise, sampling, all_reduce, host" in answer.out
    assert "these stay as h100 has them" in answer.out
    assert "products of other than 1 to 8192 rows, or sizes outside 4096 to 28672, are extrapolated" in answer.out
    text = out.read_text()
    assert text.startswith("# Fitted by batchwright calibrate to kernel tables in tables.\n")
    assert "model: llama-3.1-8b\n" in text
    ran = cli("run", "stall_free", "--backend", f"sim:{out}", "--workload", SMALL)
    assert ran.code == 0, ran.err


def test_quiet_prints_nothing(cli: Cli, tmp_path: Path) -> None:
    answer = cli("calibrate", write_tables(tmp_path / "tables"), "--base", BASE, "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_one_of_several_gpus_is_chosen(cli: Cli, tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "tables", "a_")
    write_tables(tables, "b_")
    assert (
        "holds several tables of a kind (a_x_gemm_y.csv, b_x_gemm_y.csv): those of one GPU are fitted, named by --files"
        in cli("calibrate", tables, "--base", BASE).error
    )
    assert cli("calibrate", tables, "--base", BASE, "--files", "a_", "--quiet").code == 0
    assert "under a name that begins with 'c_'" in cli("calibrate", tables, "--base", BASE, "--files", "c_").error


def test_a_simulated_run_is_no_measurement(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "vllm_v1", "--workload", SMALL, "--json", "run.json", "--quiet").code == 0
    assert "has simulated time; record a run on cpu or cuda" in cli("calibrate", "run.json").error


def test_an_arm_is_named_where_there_are_several(cli: Cli, tmp_path: Path) -> None:
    assert cli("ab", "vllm_v1", "stall_free", "--workload", SMALL, "--json", "ab.json", "--quiet").code == 0
    assert "holds the arms vllm_v1, stall_free, and no 'mine'" in cli("calibrate", "ab.json", "--arm", "mine").error
    assert "has simulated time" in cli("calibrate", "ab.json").error
    assert "several sources are fitted together where all are records" in cli("calibrate", "ab.json", tmp_path).error
    assert "has simulated time" in cli("calibrate", "ab.json", "--arm", "stall_free").error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,n,k,latency\n1,2,3,0.5\n1,2,x,0.5\n", r"x_gemm_y.csv', line 3: k should be a whole number"),
        ("m,n,k,latency\n1,2,3,0\n", "line 2: latency should be a time above 0 and is '0'"),
        ("m,n,k,latency\n1,2,3\n", "line 2: latency should be a time above 0 and is None"),
        ("m,n,latency\n1,2,3\n", "line 1: there is no column 'k'; expected the columns m,n,k,latency"),
    ],
)
def test_a_broken_table_is_named(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x_gemm_y.csv").write_text(text)
    assert said in cli("calibrate", tmp_path, "--base", BASE).error


def test_what_cannot_be_had_is_said(cli: Cli, tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "tables")
    assert "calibrate reads a folder of kernel tables" in cli("calibrate", "nothing").error
    assert "say neither model nor GPU: name a machine to start from" in cli("calibrate", tables).error
    assert "end the name in .yaml" in cli("calibrate", tables, "--base", BASE, "--out", "mine.txt").error
    assert "there is no folder" in cli("calibrate", tables, "--base", BASE, "--out", "no/mine.yaml").error
    assert "it has no constants to fit; those that have: sim" in cli("calibrate", tables, "--backend", "cpu").error
    assert "there is no such backend" in cli("calibrate", tables, "--backend", "simm").error
    (tmp_path / "run.json").write_text(json.dumps({"runs": [{"record_version": 99}]}))
    assert "holds no run's records" in cli("calibrate", "run.json").error
    (tmp_path / "run.txt").write_text("")
    assert "is neither a folder nor .json nor .jsonl" in cli("calibrate", "run.txt").error
    (tmp_path / "requests.jsonl").write_text("")
    assert "says nothing of kernels: name a machine" in cli("calibrate", "requests.jsonl").error
    assert "holds no request" in cli("calibrate", "requests.jsonl", "--base", BASE).error
