"""The workload of a seed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from batchwright import WorkloadError
from batchwright.lab import Workload, load_workload
from batchwright.lab.varied import NUM_BLOCKS, varied
from batchwright.request import SLO

SPEC = "synthetic:rate=20,n=50,prompt=lognormal(512,0.8,4000),output=uniform(16,128)"


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        (SPEC, f"{SPEC},seed=3"),
        (f"{SPEC},seed=4", f"{SPEC},seed=7"),
        (SPEC.replace("rate", "seed=4,rate"), f"{SPEC},seed=7"),
        ("synthetic:seed=2", "synthetic:seed=5"),
        ("synthetic:", "synthetic:seed=3"),
    ],
)
def test_a_synthetic_workload_is_drawn_again(given: str, drawn: str) -> None:
    found = varied(load_workload(given), 3)
    assert found.rows == load_workload(drawn).rows
    assert found.name == given and varied(load_workload(found.source), 0).rows == found.rows


def test_several_that_are_offered_together_are_each_drawn_again() -> None:
    found = varied(load_workload(f"{SPEC},seed=4 + synthetic:rate=5,n=9,turns=uniform(1,4)").closed(3), 3)
    drawn = load_workload(f"{SPEC},seed=19 + synthetic:rate=5,n=9,turns=uniform(1,4),seed=15")
    assert found.rows == drawn.rows and found.concurrency == 3
    assert varied(load_workload(found.source), 0).rows == found.rows


def test_no_two_seeds_have_a_draw_in_common() -> None:
    """Runs of two seeds would else be alike in part, and an interval over seeds too narrow."""
    parts = [f"{SPEC},client=c{own},seed={own}" for own in (1, 2, 5)]
    drawn = set()
    for seed in range(8):
        rows = varied(load_workload(" + ".join(parts)), seed).held()
        for client in ("c1", "c2", "c5"):
            drawn.add(tuple(row.num_prompt_tokens for row in rows if row.client_id == client))
    assert len(drawn) == 24


def test_a_specification_may_be_longer_than_the_name_of_a_file() -> None:
    spec = " + ".join([SPEC] * 9)
    assert len(spec) > 300 and len(load_workload(spec)) == 450
    with pytest.raises(WorkloadError, match="synthetics"):
        load_workload(spec.replace("synthetic:", "synthetics:", 1))


def test_the_sessions_of_another_draw_are_whole() -> None:
    """However many turns they have: only a workload that was cut is cut again."""
    spec = "synthetic:rate=5,n=20,turns=uniform(1,9)"
    counts = set()
    for seed in range(5):
        found = varied(load_workload(spec), seed)
        assert found.rows == load_workload(f"{spec},seed={seed}").rows
        counts.add(len(found))
    assert len(counts) > 1
    assert len(varied(load_workload(spec, limit=10), 3)) == 10


def test_what_was_done_to_it_is_done_again() -> None:
    options = {"limit": 30, "speedup": 2.5, "slo": SLO(ttft_s=0.5)}
    assert varied(load_workload(SPEC, **options), 3).rows == load_workload(f"{SPEC},seed=3", **options).rows


def trace(tmp_path: Path, num: int = 300) -> Workload:
    """Gaps, prompts and outputs that tell which row it is."""
    arrival, lines = 0.0, []
    for i in range(num):
        arrival += 0.01 * (1 + i % 7)
        lines.append(json.dumps({"arrival_s": arrival, "num_prompt_tokens": 100 + i, "num_output_tokens": 1 + i % 9}))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return load_workload(path)


def test_a_trace_is_put_together_from_blocks_of_itself(tmp_path: Path) -> None:
    load = trace(tmp_path)
    found = varied(load, 3)
    assert isinstance(found.rows, tuple)
    assert len(found) == len(load) and found.name == load.name
    assert found.rows != load.rows != varied(load, 4).rows and varied(load, 3).hash == found.hash
    order = [(row.num_prompt_tokens or 0) - 100 for row in found.rows]
    borders = [place for place in range(1, 300) if (order[place] - order[place - 1]) % 300 != 1]
    assert len(borders) < NUM_BLOCKS and all(border % 10 == 0 for border in borders)
    assert len(set(order)) < 300  # some are drawn twice
    # Gaps come along, but for a scale that keeps the whole as long as it was.
    gaps = [b.arrival_ns - a.arrival_ns for a, b in zip(found.rows, found.rows[1:], strict=False)]
    scale = {round(gaps[p - 1] / (1e7 * (1 + order[p] % 7)), 3) for p in range(1, 300) if p not in borders}
    assert len(scale) == 1 and found.span_s == pytest.approx(load.span_s)


def test_a_synthetic_workload_that_was_changed_is_put_together_from_blocks(tmp_path: Path) -> None:
    load = load_workload(SPEC)
    assert isinstance(load.rows, tuple)
    changed = replace(load, rows=load.rows[10:])
    found = varied(changed, 3)
    lengths = {row.num_prompt_tokens for row in changed.rows}
    assert len(found) == 40 and {row.num_prompt_tokens for row in found.rows} <= lengths


def test_a_lazy_workload_cannot_be_drawn_anew() -> None:
    with pytest.raises(WorkloadError, match=r"read it as a whole, or leave its arrivals as they are \(--no-resample\)"):
        varied(load_workload(SPEC, lazy=True), 3)
