"""What a load was like: overload, utilization, and the sentences that close a report."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from batchwright.config import EngineConfig
from batchwright.lab import Load, compare, load_workload, run_arm
from batchwright.lab.run_record import RunLimits, RunRecord
from lab.hand import MS, S, request, run, step
from lab.test_readers import trace

LLAMA = {"backend": "sim:llama-3.1-8b@h100", "max_num_batched_tokens": 2048}


@cache
def simulated(spec: str, policy: str = "prefill_first", **values: Any) -> RunRecord:
    return run_arm(EngineConfig(policy=policy, **LLAMA, **values), load_workload(spec), arm=policy)


def poisson(rate: float, num: int = 600) -> str:
    return f"synthetic:rate={rate},n={num},prompt=lognormal(900,0.7),output=uniform(50,350),seed=4"


@cache
def saturation_rate(policy: str) -> float:
    """Requests a second when all are there at once."""
    full = simulated(f"synthetic:rate=inf,n=600,{poisson(1).partition('n=600,')[2]}", policy)
    return len(full.requests) / full.duration_s


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1"])
@pytest.mark.parametrize(("share", "overloaded"), [(0.4, False), (0.7, False), (1.5, True), (3, True)])
def test_overload_is_arrivals_beyond_the_service_rate(policy, share, overloaded) -> None:
    record = simulated(poisson(share * saturation_rate(policy)), policy)
    assert Load.of(record).overloaded == overloaded


def test_utilization_is_the_offered_share_of_the_saturation_rate() -> None:
    rate = saturation_rate("vllm_v1")
    for share in (0.3, 0.6, 0.9):
        found = Load.of(simulated(poisson(share * rate), "vllm_v1")).utilization
        assert found == pytest.approx(share, rel=0.25)


def test_requests_that_all_arrive_at_once_measure_the_length_of_the_run() -> None:
    spec = f"synthetic:rate=inf,n=600,{poisson(1).partition('n=600,')[2]}"
    a = simulated(spec, "prefill_first")
    b = simulated(spec, "vllm_v1")
    assert Load.of(a).overloaded
    found = [line for line in compare([a, b]).closing if "overloaded" in line]
    assert found == [
        "both arms are overloaded: all requests arrive at once, and latencies measure the length of the run, "
        "not the policy"
    ]


def test_a_short_run_with_room_is_not_overloaded() -> None:
    """Its backlog grows to the end, since no request ends before the last arrives; but nobody is left out."""
    record = simulated("synthetic:rate=40,n=40,prompt=100,output=400")
    assert record.requests[0].finish_ns > record.requests[-1].arrival_ns
    assert not Load.of(record).overloaded


@pytest.mark.parametrize("policy", ["prefill_first", "stall_free"])
@pytest.mark.parametrize(("speedup", "overloaded"), [(2, False), (4, True)])
def test_the_azure_conversation_trace_on_an_h100(policy, speedup, overloaded) -> None:
    """The first 3,000 of 19,366 requests, the calmest of them: the whole trace asks for more."""
    load = load_workload(trace("AzureLLMInferenceTrace_conv.csv"), speedup=speedup, limit=3000)
    record = run_arm(EngineConfig(policy=policy, **LLAMA), load)
    assert Load.of(record).overloaded == overloaded


# Hand-made: a server that takes one request at a time ------------------------------------------------------------


def one_server(arrivals_ms: list[float], service_ms: float) -> RunRecord:
    requests, steps, free = [], [], 0.0
    ends: list[float] = []
    for i, arrival in enumerate(arrivals_ms):
        begin = max(free, arrival)
        free = begin + service_ms
        ends.append(free)
        requests.append(request(i, arrival_ms=arrival, times_ms=[free], num_cached_tokens=10))
    for i, end in enumerate(ends):
        waiting = sum(a <= end for a in arrivals_ms[i + 2 :])
        steps.append(step(i, end - service_ms, end, num_waiting=waiting))
    return run(requests, steps, limits=RunLimits(1, 64, None, 100, 100, 16))


def test_a_burst_that_is_worked_off_is_no_overload() -> None:
    arrivals = [10.0 * i for i in range(100)]
    arrivals[40:60] = [400 + i for i in range(20)]
    assert not Load.of(one_server(arrivals, 8)).overloaded
    assert Load.of(one_server([6.0 * i for i in range(100)], 8)).overloaded
    assert not Load.of(one_server([8.0 * i for i in range(100)], 8)).overloaded


def test_a_backlog_that_was_there_from_the_start_and_does_not_grow_is_no_overload() -> None:
    arrivals = [0.0] * 20 + [8.0 * i for i in range(100)]
    found = Load.of(one_server(arrivals, 8))
    assert found.waited > 0.9
    assert not found.overloaded


def test_residents_beyond_the_batch_count_as_left_out() -> None:
    slow = one_server([6.0 * i for i in range(100)], 8)
    slow.steps = [replace(s, num_running=1 + s.num_waiting, num_waiting=0) for s in slow.steps]
    assert Load.of(slow).overloaded
    assert Load.of(slow).waited == 0


def test_shares_of_steps() -> None:
    requests = [request(0, times_ms=[40], num_prompt_tokens=100)]  # 7 blocks of 16
    steps = [
        step(0, 0, 10, num_waiting=2),
        step(1, 10, 20, free_blocks=7),
        step(2, 20, 30, free_blocks=6),
        step(3, 30, 40, num_preempted=1),
    ]
    found = Load.of(run(requests, steps))
    assert found.waited == 0.25
    assert found.kv_full == 0.5
    assert found.utilization is None
    assert not found.overloaded


def test_a_run_without_steps_or_requests() -> None:
    nothing = Load.of(run([], []))
    assert (nothing.waited, nothing.kv_full, nothing.utilization, nothing.overloaded) == (0, 0, None, False)
    refused = Load.of(run([request(i, arrival_ms=i, status="refused") for i in range(20)], []))
    assert not refused.overloaded


# Closing lines ---------------------------------------------------------------------------------------------------


def arms(speedup: float = 1.0, gap_ms: float = 20.0, **values: Any) -> list[RunRecord]:
    """Two arms with other settings and the same records."""
    a = one_server([gap_ms * i for i in range(100)], 8)
    a.workload["speedup"] = speedup
    b = replace(a, arm="b", settings={"policy": {"use": "another"}}, **values)
    return [a, b]


def separation(runs: list[RunRecord]) -> str:
    (line,) = [line for line in compare(runs).closing if line.startswith("decisions differ")]
    return line


def test_a_load_that_cannot_separate_the_arms_says_what_would() -> None:
    line = separation(arms())
    assert line.startswith(
        "decisions differ in 0.0% of steps; somebody waited in 0.0%; KV full in 0.0%: "
        "this load cannot separate the arms; try --speedup "
    )
    suggested = float(line.rpartition(" ")[2])
    # One request in 8 ms, which come every 20 ms: 2.5 times as many fill the server.
    assert suggested == pytest.approx(0.8 * 2.5, abs=0.1)


def test_the_suggestion_counts_from_the_speedup_that_was_used() -> None:
    one = float(separation(arms()).rpartition(" ")[2])
    assert float(separation(arms(speedup=3)).rpartition(" ")[2]) == pytest.approx(3 * one, rel=0.05)


def test_near_saturation_no_speedup_is_suggested() -> None:
    line = separation(arms(gap_ms=8.2))
    assert line.endswith("this load cannot separate the arms, near saturation as it is; try other lengths or limits")


def test_the_same_settings_are_said_to_be_the_same() -> None:
    a, b = arms()
    assert separation([a, replace(b, settings=a.settings)]).endswith(": the arms have the same policy and settings")


def test_arms_that_decide_differently_get_no_suggestion() -> None:
    a, b = arms()
    b.batches = array("Q", [i + 1 if i % 4 == 0 else i for i in range(100)])
    assert separation([a, b]).startswith("decisions differ in 25.0% of steps; ")
    assert "--speedup" not in separation([a, b])


def test_overload_names_the_arms_and_a_speedup_that_both_can_bear() -> None:
    slow = one_server([6.0 * i for i in range(100)], 8)
    fast = replace(one_server([6.0 * i for i in range(100)], 4), arm="b")
    slow.workload["speedup"] = fast.workload["speedup"] = 2.0
    lines = compare([slow, replace(slow, arm="b")]).closing
    (line,) = [line for line in lines if "overloaded" in line]
    said = (
        "both arms are overloaded at this rate: latencies measure the length of the run, not the policy; try --speedup "
    )
    assert line.startswith(said)
    # 594 ms of arrivals took 800 ms: 2 * 594 / 800, less a tenth.
    assert float(line.removeprefix(said)) == pytest.approx(1.3, abs=0.05)
    (line,) = [line for line in compare([slow, fast]).closing if "overloaded" in line]
    assert line.startswith("a is overloaded, other arms are not, at this rate: ")
    (line,) = [line for line in compare([slow]).closing if "overloaded" in line]
    assert line.startswith("a is overloaded at this rate: ")


def test_what_did_not_finish_is_said_first() -> None:
    a, b = arms()
    b.requests = list(b.requests)
    b.requests[0] = request(0, arrival_ms=0, status="refused", error="needs 4 blocks, the pool has 2")
    b.requests[1] = request(1, arrival_ms=20, status="unfinished")
    b = replace(b, stopped="max_steps", events=[{"kind": "observer_fault"}, {"kind": "thrash"}])
    lines = compare([a, b]).closing
    assert lines[0] == "b reached its limit of steps after 2.0 s: the rest is unfinished"
    assert lines[1] == (
        "b: 1 refused, 1 unfinished of 100 requests; its latencies are of the others only; "
        "the first error: needs 4 blocks, the pool has 2"
    )
    assert lines[2] == "b had 1 faults of plugins or backend (see events in the records)"
    assert lines[3] == "b: thrash (much is computed again and again) was detected 1 times (see events in the records)"


def test_a_real_clock_asks_for_care() -> None:
    a, b = arms()
    assert not any("clock is real" in line for line in compare([a, b]).closing)
    found = compare([replace(a, virtual_time=False), replace(b, virtual_time=False)])
    assert any("the clock is real and each arm ran once" in line for line in found.closing)


def test_the_hand_made_server_is_what_it_claims() -> None:
    record = one_server([0.0, 0.0, 100.0], 8)
    assert [r.finish_ns for r in record.requests] == [8 * MS, 16 * MS, 108 * MS]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(record.steps))
    assert record.duration_ns == 0.108 * S
