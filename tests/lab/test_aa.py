"""``benchmarks/aa.py``, with a few pairs: it counts what it says, and finds a shift of three percent."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from batchwright import EngineConfig
from batchwright.lab import load_workload, run_arm

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "aa.py"
RESULTS = SCRIPT.parent / "results" / "aa.json"


@pytest.fixture(scope="module")
def aa() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_aa", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_aa"] = module
    spec.loader.exec_module(module)
    return module


def test_a_machine_that_is_slower_is_so_in_every_step(aa: ModuleType, tmp_path: Path) -> None:
    steps = []
    for factor in (1.0, 1.03):
        path = tmp_path / f"{factor}.yaml"
        path.write_text(yaml.safe_dump(aa.machine(factor)))
        run = run_arm(
            EngineConfig(policy="vllm_v1", backend=f"sim:{path}", num_blocks=600),
            load_workload("synthetic:rate=inf,n=12,prompt=uniform(50,900),output=uniform(2,20)"),
        )
        steps.append([s.end_ns - s.start_ns for s in run.steps])
    assert len(steps[0]) == len(steps[1]) > 10
    assert steps[1] == [pytest.approx(1.03 * took, abs=1) for took in steps[0]]


def test_equal_arms_are_seldom_told_apart_and_a_shift_is_found(aa: ModuleType) -> None:
    equal = [aa.compare_pair(number, aa.Setting(6, (3, 6), 1.0)) for number in range(3)]
    shifted = [aa.compare_pair(number, aa.Setting(6, (3, 6), 1.03)) for number in range(3, 6)]
    assert aa.false_verdicts(equal, 6)["declared"] <= 1
    assert aa.found_shifts(shifted, 6) == {"found": 3, "wrong_way": 0}
    assert all(pair["relative"] == pytest.approx(0.03, abs=0.02) for pair in shifted)


def test_verdicts_are_counted_where_they_stand(aa: ModuleType) -> None:
    pairs: list[dict[str, Any]] = [
        {"verdicts": {2: found}, "half_width": {2: width}}
        for found, width in [
            ({}, 0.02),
            ({"mean_itl_ms": "better", "p90_itl_ms": "better"}, 0.04),
            ({"median_e2el_ms": "worse"}, None),
            ({"p90_ttft_ms": "worse"}, 0.06),
        ]
    ]
    found = aa.false_verdicts(pairs, 2)
    assert (found["declared"], found["primary"], found["table"], found["all"]) == (1, 1, 2, 3)
    assert found["half_width"] == 0.04
    assert list(found["by_metric"]) == ["mean_itl_ms", "median_e2el_ms", "p90_itl_ms", "p90_ttft_ms"]
    words = ["worse", "worse", "better", None]
    shifts = [{"verdicts": {2: {"mean_itl_ms": w} if w else {}}} for w in words]
    assert aa.found_shifts(shifts, 2) == {"found": 2, "wrong_way": 1}


@pytest.mark.parametrize(
    ("declared", "table", "found", "good"),
    [(16, 16, 90, True), (17, 16, 90, False), (0, 17, 90, False), (0, 0, 89, False)],
)
def test_what_is_asked_of_it(aa: ModuleType, declared: int, table: int, found: int, good: bool) -> None:
    """Of 200 pairs at most 16, of 100 shifts at least 90."""
    value = {"false": {"declared": declared, "table": table}, "shift": {"found": found}}
    assert aa.within(value, 200, 100) is good


def test_equal_records_are_no_experiment(aa: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aa, "NOISE", 0.0)
    with pytest.raises(AssertionError, match="the same token times in seed 0"):
        aa.compare_pair(0, aa.Setting(2, (2,), 1.0))


def test_the_committed_figures_are_good(aa: ModuleType) -> None:
    value = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert (value["pairs"], value["shifted"], value["setting"]["seeds"]) == (200, 100, 20)
    assert value["setting"]["noise"] == 0.05 and value["setting"]["workload"] == aa.WORKLOAD
    assert aa.within(value["by_seeds"]["20"], 200, 100)
