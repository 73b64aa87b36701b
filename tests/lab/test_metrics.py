"""Metrics beyond latencies, by hand and by the plainest code."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.config import EngineConfig
from batchwright.lab import METRICS, RequestRecord, Workload, load_workload, run_arm, summarize
from batchwright.lab.fairness import MAX_POINTS, Service, jain_index, largest_gap, rates
from batchwright.lab.samples import LATENCIES, latency_samples
from batchwright.lab.slo_classes import summarize_classes
from batchwright.lab.starvation import passed_over
from batchwright.request import SLO
from lab.hand import MS, S, request, run, step


def times(*ms: float) -> array[int]:
    return array("q", [round(t * MS) for t in ms])


# Latencies ---------------------------------------------------------------------------------------------------------


def test_latencies_beyond_vllms_by_hand() -> None:
    one = request(0, arrival_ms=100, times_ms=[150, 170, 200], first_scheduled_ns=120 * MS)
    two = request(1, arrival_ms=200, times_ms=[300, 390, 400], first_scheduled_ns=250 * MS, num_preemptions=1)
    two.preempted_ns, two.resumed_ns = times(310), times(350)
    three = request(2, arrival_ms=0, times_ms=[10], first_scheduled_ns=0)
    found = latency_samples(run([one, two, three]))
    assert found["max_itl"].values.tolist() == [30, 90]
    assert found["max_itl"].owners.tolist() == [0, 1]
    assert found["norm_latency"].values.tolist() == pytest.approx([100 / 3, 200 / 3, 10])
    assert found["scheduling_delay"].values.tolist() == [20, 50, 0]
    assert found["waiting"].values.tolist() == [20, 90, 0]
    assert found["waiting"].owners.tolist() == [0, 1, 2]


def test_an_eviction_before_the_first_step_is_part_of_the_first_wait() -> None:
    one = request(0, arrival_ms=0, times_ms=[50], first_scheduled_ns=30 * MS, num_preemptions=1)
    one.preempted_ns, one.resumed_ns = times(10), times(30)
    assert latency_samples(run([one]))["waiting"].values.tolist() == [30]


def test_what_no_step_was_seen_of_has_no_scheduling_delay() -> None:
    found = summarize(run([request(0, times_ms=[1, 2], first_scheduled_ns=None)]))
    assert found["mean_scheduling_delay_ms"] is found["mean_waiting_ms"] is None
    assert found["longest_wait"] is found["max_passed_over"] is None
    assert found["mean_ttft_ms"] == 1
    elsewhere = [request(i, times_ms=[9], client_id="ab"[i], first_scheduled_ns=None) for i in range(2)]
    assert summarize(run(elsewhere))["max_service_gap"] is None


@given(st.lists(st.lists(st.integers(1, 10**5), min_size=1, max_size=9), min_size=1, max_size=12))
def test_the_longest_gaps_by_the_plainest_code(gaps: list[list[int]]) -> None:
    requests = [request(i, times_ms=np.cumsum(own).tolist()) for i, own in enumerate(gaps)]
    found = latency_samples(run(requests))["max_itl"]
    assert found.values.tolist() == [max(own[1:]) for own in gaps if len(own) > 1]
    assert found.owners.tolist() == [i for i, own in enumerate(gaps) if len(own) > 1]


def test_waits_of_a_simulated_run_are_those_that_its_steps_tell() -> None:
    """Each request is waiting, running or ended: what waits in all is the sum over steps, and evictions among them."""
    config = EngineConfig(policy="vllm_v1", num_blocks=120, max_num_seqs=8, max_num_batched_tokens=512)
    record = run_arm(config, load_workload("synthetic:rate=inf,n=30,prompt=uniform(50,400),output=uniform(30,120)"))
    assert sum(r.num_preemptions for r in record.requests) > 5
    waited = sum(latency_samples(record)["waiting"].values) * MS
    # All arrive before the first step, which begins at 0; after that num_waiting holds until the next step's end.
    counted = sum((s.end_ns - s.start_ns) * s.num_waiting for s in record.steps)
    assert waited == pytest.approx(counted, rel=1e-9)


# Peaks -------------------------------------------------------------------------------------------------------------


def peaks_by_vllm(requests: list[RequestRecord]) -> tuple[float, int]:
    """As ``calculate_metrics`` of vllm/benchmarks/serve.py, 0.32.0, says it, in words of our own."""
    start = min(r.arrival_ns for r in requests)
    seconds = (max(r.token_times_ns[-1] for r in requests) - start) // S + 2
    tokens, there = [0] * seconds, [0] * seconds
    for r in requests:
        for t in r.token_times_ns:
            tokens[(t - start) // S] += 1
        for second in range((r.arrival_ns - start) // S, (r.token_times_ns[-1] - start) // S + 1):
            there[second] += 1
    return max(tokens), max(there)


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.lists(st.integers(1, 900), min_size=1, max_size=12)), min_size=1, max_size=9
    )
)
def test_peaks_are_vllms(values: list[tuple[int, list[int]]]) -> None:
    requests = [
        request(i, arrival_ms=at, times_ms=np.cumsum([at, *gaps])[1:].tolist()) for i, (at, gaps) in enumerate(values)
    ]
    found = summarize(run(requests))
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == peaks_by_vllm(requests)


# Steps -------------------------------------------------------------------------------------------------------------


def test_steps_by_hand() -> None:
    steps = [
        step(0, 0, 10, num_prefill_tokens=90, num_decodes=10, batch_size=12, free_blocks=512, num_waiting=3),
        step(1, 10, 40, num_decodes=10, batch_size=10, free_blocks=256),
        step(2, 60, 70, num_decodes=1, batch_size=1, free_blocks=1024, num_waiting=1),
    ]
    found = summarize(run([request(0, times_ms=[70])], steps, duration_ns=100 * MS))
    assert found["num_steps"] == 3
    assert found["steps_per_s"] == 30
    assert found["kv_use_mean"] == pytest.approx((0.5 * 10 + 0.75 * 30 + 0 * 10) / 50)
    assert found["kv_use_peak"] == 0.75
    assert (found["mean_batch_size"], found["median_batch_size"]) == (pytest.approx(23 / 3), 10)
    assert (found["mean_step_tokens"], found["median_step_tokens"]) == (pytest.approx(111 / 3), 10)
    assert found["p99_step_tokens"] == pytest.approx(np.percentile([100, 10, 1], 99))
    assert found["waiting_share"] == pytest.approx(20 / 100)


def test_what_steps_did_not_keep_is_undefined() -> None:
    found = summarize(run([request(0, times_ms=[70])], [step(0, 0, 70)]))
    assert found["mean_batch_size"] is None
    assert found["mean_step_tokens"] == 1
    none = summarize(run([request(0, times_ms=[70])]))
    assert none["kv_use_mean"] is none["mean_step_tokens"] is none["waiting_share"] is None
    assert none["num_steps"] is none["steps_per_s"] is None


def test_batch_sizes_of_a_run_are_those_of_its_steps() -> None:
    record = run_arm(EngineConfig(policy="stall_free"), load_workload("synthetic:rate=40,n=60,prompt=300,output=20"))
    assert sum(s.batch_size for s in record.steps) >= sum(s.num_decodes for s in record.steps) + 60
    found = summarize(record)
    assert found["mean_batch_size"] == pytest.approx(np.mean([s.batch_size for s in record.steps]))


# Starvation --------------------------------------------------------------------------------------------------------


def test_starvation_by_hand() -> None:
    requests = [
        request(0, arrival_ms=0, times_ms=[900], first_scheduled_ns=500 * MS),  # two that came later went first
        request(1, arrival_ms=10, times_ms=[100], first_scheduled_ns=20 * MS),
        request(2, arrival_ms=20, times_ms=[200], first_scheduled_ns=500 * MS),  # with the first: passed by one
        request(3, arrival_ms=30, times_ms=[200], first_scheduled_ns=40 * MS),
        request(4, arrival_ms=40),  # never ran: nobody who came later did
        request(5, arrival_ms=5, status="refused"),
    ]
    found = summarize(run(requests, duration_ns=2 * S))
    assert found["longest_wait"] == pytest.approx(1.96)
    assert found["max_passed_over"] == 2
    assert found["passed_over"] == 2 / 5


def test_the_longest_wait_may_follow_an_eviction() -> None:
    one = request(0, times_ms=[10, 900], first_scheduled_ns=0, num_preemptions=1)
    one.preempted_ns, one.resumed_ns = times(20), times(700)
    assert summarize(run([one]))["longest_wait"] == pytest.approx(0.68)
    lost = request(0, times_ms=[10], first_scheduled_ns=0, status="unfinished", finish_ns=None, num_preemptions=1)
    lost.preempted_ns = times(20)
    assert summarize(run([lost], duration_ns=S))["longest_wait"] == pytest.approx(0.98)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40))
def test_who_was_passed_over_by_the_plainest_code(values: list[tuple[int, int]]) -> None:
    arrivals, begun = (np.array(column, dtype=np.int64) for column in zip(*values, strict=True))
    num = len(values)
    later = [[j for j in range(num) if (arrivals[j], j) > (arrivals[i], i)] for i in range(num)]
    expected = [sum(begun[j] < begun[i] for j in later[i]) for i in range(num)]
    assert passed_over(arrivals, begun).tolist() == expected


# Fairness ----------------------------------------------------------------------------------------------------------


def test_jains_index() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([1.0, 0.0])) == pytest.approx(0.5)
    assert jain_index(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / (3 * 14))
    assert jain_index(np.array([])) is None
    assert jain_index(np.zeros(2)) == 1


def of_client(index: int, client: str, *token_ms: float, **values: Any) -> RequestRecord:
    """A request that came at 0 and waited to its end, for whatever it got: its client is backlogged up to there."""
    fields = {"first_scheduled_ns": round(token_ms[-1] * MS), "num_prompt_tokens": 4, **values}
    return request(index, times_ms=list(token_ms), client_id=client, **fields)


def test_service_by_hand() -> None:
    # a gets 4 + 2 at 10 ms and 2 at 20 and 30; b gets 4 + 2 at 30 ms.
    requests = [of_client(0, "a", 10, 20, 30), of_client(1, "b", 30)]
    service = Service.of(run(requests))
    assert service.clients == ["a", "b"]
    assert service.times_ns.tolist() == [0, 10 * MS, 20 * MS, 30 * MS]
    assert service.served.tolist() == [[0, 6, 8, 10], [0, 0, 0, 6]]
    assert service.backlogged.all()
    assert rates(service).tolist() == pytest.approx([10 / 0.03, 6 / 0.03])
    assert largest_gap(service) == 8
    found = summarize(run(requests))
    assert found["max_service_gap"] == 8
    assert found["jain_fairness"] == pytest.approx(16**2 / (2 * (100 + 36)))


def test_service_is_weighted_and_leaves_out_what_was_cached() -> None:
    requests = [of_client(0, "a", 10, weight=2.0), of_client(1, "b", 10, num_cached_tokens=3)]
    assert Service.of(run(requests)).served[:, -1].tolist() == [3, 3]


def test_only_times_in_which_both_wait_count() -> None:
    # b waits from 0 to 10 only: what a gets later is nobody's loss.
    requests = [of_client(0, "a", 10, 20, 30, 40), of_client(1, "b", 10, 40, first_scheduled_ns=10 * MS)]
    service = Service.of(run(requests))
    assert service.backlogged.tolist() == [[True] * 4, [True, False, False, False]]
    assert largest_gap(service) == 0
    assert jain_index(rates(service)) == pytest.approx(1)


def test_one_client_and_clients_that_never_compete_have_no_fairness() -> None:
    for requests in (
        [of_client(0, "a", 10), of_client(1, "a", 20)],
        [of_client(0, "a", 10, first_scheduled_ns=0), of_client(1, "b", 20, first_scheduled_ns=0)],
        [of_client(0, "a", 10), of_client(1, "b", 20, status="refused")],
        [],
    ):
        found = summarize(run(requests))
        assert found["jain_fairness"] is found["max_service_gap"] is None


@given(st.integers(0, 10**6))
def test_the_largest_gap_by_the_plainest_code(seed: int) -> None:
    """Over all pairs of clients and of moments between which both waited throughout."""
    rng = np.random.default_rng(seed)
    requests = []
    for i in range(8):
        at = int(rng.integers(0, 40))
        begun = at + int(rng.integers(0, 30))
        tokens = begun + np.cumsum(rng.integers(1, 9, size=3))
        requests.append(
            request(
                i,
                arrival_ms=at,
                times_ms=tokens.tolist(),
                first_scheduled_ns=begun * MS,
                client_id="abc"[int(rng.integers(0, 3))],
            )
        )
    service = Service.of(run(requests))
    moments = sorted({0, *(t for r in requests for t in r.token_times_ns)})
    expected: float | None = None
    for f, g in combinations(service.clients, 2):
        for t1, t2 in combinations(moments, 2):
            both = [
                all(
                    any(
                        (r.arrival_ns <= a and b <= (r.first_scheduled_ns or 0)) or _joined(requests, c, a, b)
                        for r in requests
                        if r.client_id == c
                    )
                    for a, b in _cells(moments, t1, t2)
                )
                for c in (f, g)
            ]
            if all(both):
                got = [sum(_gets(r, t1, t2) for r in requests if r.client_id == c) for c in (f, g)]
                expected = max(expected or 0.0, abs(got[0] - got[1]))
    found = largest_gap(service)
    assert found == (None if expected is None else pytest.approx(expected))


def _cells(moments: list[int], t1: int, t2: int) -> list[tuple[int, int]]:
    inside = [t for t in moments if t1 <= t <= t2]
    return list(pairwise(inside))


def _joined(requests: list[RequestRecord], client: str | None, a: int, b: int) -> bool:
    """Whether waits of several requests of a client cover a time together, millisecond by millisecond."""
    own = [r for r in requests if r.client_id == client]
    return all(any(r.arrival_ns <= t and t + MS <= (r.first_scheduled_ns or 0) for r in own) for t in range(a, b, MS))


def _gets(record: RequestRecord, t1: int, t2: int) -> float:
    got = [t for t in record.token_times_ns if t1 < t <= t2]
    return 2 * len(got) + record.num_prompt_tokens * (record.token_times_ns[0] in got)


def test_many_moments_are_thinned_out() -> None:
    num = 3 * MAX_POINTS
    requests = [of_client(0, "a", *range(1, num)), of_client(1, "b", num)]
    service = Service.of(run(requests))
    assert len(service.times_ns) == MAX_POINTS
    assert largest_gap(service) == pytest.approx(2 * (num - 1) + 4, rel=0.01)


def test_vtc_serves_clients_more_evenly_than_who_comes_first() -> None:
    """Two clients that ask for more than there is, one of them for thrice as much."""
    spec = "synthetic:rate={},n={},prompt=256,output=128,clients=1,seed={}"
    rows = []
    for client, rate, num in (("calm", 30, 120), ("greedy", 90, 360)):
        load = load_workload(spec.format(rate, num, num))
        rows += [(row, client) for row in load.rows]
    ordered = sorted((replace(row, client_id=client) for row, client in rows), key=lambda row: row.arrival_ns)
    workload = Workload("two", tuple(ordered), "two")
    found = {}
    for policy in ("vllm_v1", "vtc"):
        record = run_arm(EngineConfig(policy=policy, max_num_seqs=16, num_blocks=600), workload)
        found[policy] = summarize(record)
    assert found["vtc"]["jain_fairness"] > 0.98 > found["vllm_v1"]["jain_fairness"]
    assert found["vtc"]["max_service_gap"] < 0.3 * found["vllm_v1"]["max_service_gap"]


# SLOs and classes --------------------------------------------------------------------------------------------------


def test_slo_attainment_is_of_requests_with_objectives() -> None:
    slo = SLO(ttft_s=0.1)
    requests = [
        request(0, times_ms=[100], slo=slo),
        request(1, times_ms=[101], slo=slo),
        request(2, status="refused", slo=slo),
        request(3, times_ms=[900]),
    ]
    found = summarize(run(requests))
    assert found["slo_attainment"] == pytest.approx(1 / 3)
    assert found["failed"] == 1
    assert summarize(run(requests[3:]))["slo_attainment"] is None


def test_classes_by_their_names_or_by_their_objectives() -> None:
    requests = [
        request(0, times_ms=[100], slo=SLO(ttft_s=0.1), slo_class="chat"),
        request(1, times_ms=[300], slo=SLO(ttft_s=0.1), slo_class="chat"),
        request(2, times_ms=[300], slo=SLO(ttft_s=1.0, tpot_s=0.05)),
        request(3, times_ms=[500]),
    ]
    found = summarize_classes(run(requests, duration_ns=2 * S))
    assert list(found) == ["chat", "ttft=1,tpot=0.05", "no objectives"]
    assert [c["num_requests"] for c in found.values()] == [2, 1, 1]
    assert [c["slo_attainment"] for c in found.values()] == [0.5, 1, None]
    assert [c["request_goodput"] for c in found.values()] == [0.5, 0.5, None]
    assert [c["mean_ttft_ms"] for c in found.values()] == [200, 300, 500]
    assert summarize_classes(run(requests[:2])) == {}


# The registry ------------------------------------------------------------------------------------------------------


def test_every_metric_is_defined_and_has_its_unit() -> None:
    for metric in METRICS.values():
        assert metric.doc, metric.name
        assert metric.unit or metric.scale == 100 or metric.decimals in (0, 2, 3), metric.name
        if metric.name.endswith("_ms"):
            assert metric.unit in ("ms", "ms/token")
    assert {name for name in LATENCIES if f"p99_{name}_ms" not in METRICS} == set()


IN_LABELS = {"requests/s": "req/s", "1/s": "Steps/s", "s": "(ms)"}
"""How labels say a unit that they do not have as it is."""

COUNTS_OF_REQUESTS = [
    "completed",
    "failed",
    "num_refused",
    "num_unfinished",
    "num_failed",
    "num_aborted",
    "num_tpot_undefined",
]


def test_labels_say_units() -> None:
    """Times are in milliseconds but for the length of the run, shares in percent; counts say what is counted."""
    for metric in METRICS.values():
        assert ("%" in metric.label) == metric.is_share, metric.label
        if metric.name == "duration":
            assert metric.label == "Duration (s)"
        elif metric.unit and metric.name not in COUNTS_OF_REQUESTS:
            assert IN_LABELS.get(metric.unit, metric.unit) in metric.label, metric.label
    assert METRICS["longest_wait"].scale == 1000 and METRICS["longest_wait"].unit == "s"


def test_names_of_vllms_results_mean_what_they_mean_there() -> None:
    """The names of a result file of vllm bench serve 0.32.0 that are numbers of a run, but for those of the client."""
    numbers = "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput"
    numbers += " output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests"
    latencies = [f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl")]
    assert {*numbers.split(), *latencies, "p99_e2el_ms"} <= set(METRICS)
