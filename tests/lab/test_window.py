"""Warm-up and cool-down: who counts, and over which time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchwright import EngineConfig, WorkloadError
from batchwright.lab import RunRecord, ab, compare, format_report, load_workload, summarize
from batchwright.lab.load import Load
from batchwright.lab.window import Window, measured, throughput
from lab.hand import MS, request, run, step


def config(**values: Any) -> EngineConfig:
    return EngineConfig.parse({"policy": "vllm_v1", "num_blocks": 600, "max_model_len": 2048, **values})


def ten(**values: Any) -> RunRecord:
    """A request every 100 ms, each with tokens 50 and 150 ms after it came; a step of 10 ms at every arrival."""
    requests = [request(i, arrival_ms=100 * i, times_ms=[100 * i + 50, 100 * i + 150]) for i in range(10)]
    return run(requests, [step(i, 100 * i, 100 * i + 10, num_waiting=int(i < 2)) for i in range(10)], **values)


@pytest.mark.parametrize(
    ("warmup", "cooldown", "places"),
    [
        ("20%", None, (2, 10)),
        ("25%", "10%", (3, 9)),  # 2.5 requests are 3
        (0.15, None, (2, 10)),  # seconds: those at 0 and 0.1
        ("0.2s", "0.2", (2, 8)),  # at 0.2 counts; within 0.2 s of the last arrival, at 0.9: those at 0.8 and 0.9
        (None, "1%", (0, 9)),
    ],
)
def test_requests_belong_by_their_arrival(warmup: Any, cooldown: Any, places: tuple[int, int]) -> None:
    window = Window.parse(warmup, cooldown)
    assert window is not None
    assert window.places([100 * MS * i for i in range(10)]) == places


@pytest.mark.parametrize("text", ["-1", "x", "10%%", "5m", "1e3", "nan", ""])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(WorkloadError, match="expected seconds or a share of the requests, as in 30s or 10%"):
        Window.parse(text)


def test_a_window_that_leaves_nothing_is_refused_before_anything_runs() -> None:
    assert Window.parse() is None and Window.parse("0", "0%") is None
    with pytest.raises(WorkloadError, match="give less than 100% in all"):
        Window.parse("60%", "40%")
    told: list[Any] = []
    load = load_workload("synthetic:rate=10,n=20,prompt=20,output=4")
    with pytest.raises(WorkloadError, match=r"warmup 5s and cooldown 0s leave no request of 20, which arrive within"):
        ab({"a": config()}, load, warmup=5, progress=lambda *a: told.append(a))
    assert not told


def test_metrics_are_of_who_counts_over_the_time_of_the_window() -> None:
    whole = ten()
    whole.requests[0].num_preemptions = whole.requests[9].num_preemptions = 7
    whole.window = Window("20%", "20%")
    counted = measured(whole)
    assert [r.request_id for r in counted.requests] == [f"r{i:06d}" for i in range(2, 8)]
    assert counted.duration_ns == 600 * MS  # from the arrival at 0.2 s to that at 0.8 s
    assert [s.index for s in counted.steps] == list(range(2, 8)) and list(counted.batches) == list(range(2, 8))
    found = summarize(whole)
    assert (found["completed"], found["duration"], found["num_preemptions"]) == (6, 0.6, 0)
    assert found["mean_ttft_ms"] == 50 and found["mean_e2el_ms"] == 150
    assert measured(counted) is counted and measured(ten()).requests == ten().requests


def test_throughput_is_of_all_that_ended_in_the_window() -> None:
    """In (0.2, 0.8]: ends at 0.25, …, 0.75 are six; first tokens at 0.25, …, 0.75 too; each time the other's second."""
    whole = ten(window=Window("20%", "20%"))
    assert throughput(whole) == {
        "request_throughput": pytest.approx(6 / 0.6),
        "output_throughput": pytest.approx(12 / 0.6),
        "total_token_throughput": pytest.approx((12 + 60) / 0.6),
    }
    assert summarize(whole)["output_throughput"] == pytest.approx(20)
    # Without a window it is vLLM's: the tokens of all, over the whole run.
    assert throughput(ten()) == {name: pytest.approx(summarize(ten())[name]) for name in throughput(ten())}


def test_an_arm_that_drags_work_out_of_the_window_gets_no_credit_for_it() -> None:
    slow = [request(i, arrival_ms=100 * i, times_ms=[5000 + i, 5100 + i]) for i in range(10)]
    found = summarize(run(slow, window=Window("20%", "20%")))
    assert found["completed"] == 6 and found["request_throughput"] == 0


def test_the_load_is_that_of_the_window() -> None:
    assert Load.of(ten()).waited == 0.2
    assert Load.of(ten(window=Window("20%"))).waited == 0


def test_what_is_left_out_runs_and_bears_no_verdict() -> None:
    load = load_workload("synthetic:rate=60,n=40,prompt=lognormal(128,0.6),output=uniform(4,12)")
    arms = {"a": config(), "b": config(max_num_seqs=4)}
    plain, found = ab(arms, load), ab(arms, load, warmup="30%", cooldown="0.1s")
    for one, two in zip(plain.runs, found.runs, strict=True):
        assert one.requests == two.requests and one.window is None and two.window == Window("30%", "0.1s")
    left = len(measured(found.runs[0]).requests)
    assert 15 < left < 28 and found.summaries["a"]["completed"] == left
    text = " ".join(format_report(found).split())
    assert f"counted {left} of 40 requests: the first 30% and the last 0.1s are left out" in text
    assert "counted" not in format_report(plain)
    again = compare([RunRecord.from_json(json.loads(r.dumps())) for r in found.runs])
    assert again.verdicts == found.verdicts and again.runs[0].window == Window("30%", "0.1s")


def test_verdicts_do_not_see_what_is_left_out() -> None:
    """Two arms that differ in the first half only."""
    fast = [request(i, arrival_ms=50 * i, times_ms=[50 * i + 20 + i % 3, 50 * i + 40 + i % 5]) for i in range(600)]
    slow = [request(i, arrival_ms=50 * i, times_ms=[50 * i + 90 + i, 50 * i + 990 + i]) for i in range(300)]
    one, two = run(fast, arm="a"), run([*slow, *fast[300:]], arm="b")
    assert compare([one, two]).verdict("mean_ttft_ms").words == "worse"
    one.window = two.window = Window("50%")
    found = compare([one, two])
    assert {v.words for v in found.verdicts if v.metric.endswith("_ms")} == {"no difference"}


def test_where_arrivals_follow_the_run_a_window_is_a_share() -> None:
    load = load_workload("synthetic:rate=60,n=40,prompt=64,output=uniform(4,12)").closed(4)
    with pytest.raises(WorkloadError, match="at other times in each arm; give a share of them, as in 10%"):
        ab({"a": config(), "b": config(max_num_seqs=2)}, load, warmup=0.1)
    found = ab({"a": config(), "b": config(max_num_seqs=2)}, load, warmup="10%")
    ids = [[r.request_id for r in measured(run).requests] for run in found.runs]
    assert len(ids[0]) == 36 and ids[0] == ids[1]
