"""The largest load that meets objectives: of made-up runs, whose edge is known, and of the simulator."""

from __future__ import annotations

import gc
import json
import math
import random
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import Workload, load_workload
from batchwright.lab.designs.capacities import Capacities
from batchwright.lab.designs.capacity import capacity
from batchwright.lab.designs.capacity_report import format_capacity
from batchwright.lab.executors import Task
from batchwright.lab.experiment import RUNS
from batchwright.lab.files.folder import Folder
from batchwright.lab.load import Load
from batchwright.lab.saved_runs import SavedRuns

from .made_up import MadeUp, rate_of

LOAD = load_workload("synthetic:rate=8,n=20,prompt=10,output=2,burstiness=100")
SMALL = "synthetic:rate=16,n=12,prompt=lognormal(800,0.8),output=lognormal(12,0.6),seed=1"


def arms(*names: str) -> dict[str, EngineConfig]:
    return {name: EngineConfig() for name in names or ("a",)}


def linear(edge: float, noise: float = 0.0, seed: int = 0) -> Callable[[Task], float]:
    """A TTFT that reaches 1 s at the edge, off by noise of each seed, the same at every rate."""

    def ttft(task: Task) -> float:
        rng = random.Random(f"{seed} {task.seed}")
        return rate_of(task) / edge * math.exp(rng.gauss(0, noise))

    return ttft


def closing(found: Capacities) -> str:
    """The lines below the tables, as one."""
    return " ".join(format_capacity(found, 300).partition("\n* ")[2].split())


def test_the_edge_is_found() -> None:
    found = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=3, executor=MadeUp(linear(13.0)))
    (arm,) = found.arms
    assert arm.low is not None and arm.high is not None and arm.is_done
    assert arm.low.rate < 13.0 <= arm.high.rate <= 1.05 * arm.low.rate
    assert arm.rate == arm.low.rate == pytest.approx(8 * arm.low.speedup)
    assert arm.high.limited_by == ("ttft_p99<1.0",) and not arm.low.limited_by
    assert [bound.text for bound in found.plan.bounds] == ["ttft_p99<1.0", "finished>0.99"]
    assert [point.rate for point in arm.points] == sorted(point.rate for point in arm.points)
    assert format_capacity(found).splitlines()[-3:] != []
    assert "limited by" in format_capacity(found)


@settings(max_examples=6)
@given(edge=st.floats(2, 100), seed=st.integers(0, 10**6))
def test_with_noise_a_load_that_counts_as_met_is_seldom_above_the_edge(edge: float, seed: int) -> None:
    """The interval keeps it on the safe side; it is not far below either."""
    found = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=8, executor=MadeUp(linear(edge, 0.1, seed)))
    rate = found.arms[0].rate
    assert rate is not None
    assert edge * 0.75 < rate < edge * 1.12


def test_more_noise_is_met_later() -> None:
    rates = []
    for noise in (0.0, 0.1, 0.3):
        rate = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=4, executor=MadeUp(linear(10.0, noise, 1))).arms[0].rate
        assert rate is not None
        rates.append(rate)
    assert rates == sorted(rates, reverse=True) and rates[2] < 0.9 * rates[0]


def test_the_ratio_of_two_arms_has_an_interval_that_holds_it() -> None:
    """Noise that both share within a seed cancels."""

    def ttft(task: Task) -> float:
        return linear(10.0 if task.arm == "a" else 15.0, 0.3, 2)(task)

    found = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=5, executor=MadeUp(ttft))
    (ratio,) = found.ratios
    assert ratio.low < 1.5 < ratio.high and ratio.high / ratio.low < 1.25 and ratio.num_seeds == 5
    said = r"b carries 1\.\d+ times the load of a \[1\.4\d*, 1\.5\d*\]: more \(95% interval over 5 seeds; mean edges at"
    assert re.search(said, closing(found))
    assert ratio.ratio == pytest.approx(ratio.edge / ratio.base_edge) and 8 < ratio.base_edge < 13
    assert all(arm.rate is not None and arm.rate < ratio.edge for arm in found.arms)
    assert "an edge is where the one run of a seed stops meeting the objectives; a capacity is" in closing(found)
    one = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=1, executor=MadeUp(ttft))
    assert one.ratios[0].low < 1.5 < one.ratios[0].high
    assert "the interval is that of the brackets alone, from one seed" in closing(one)
    assert "one seed: whether a load meets" in closing(one)


def test_where_arms_are_alike_no_difference_is_shown() -> None:
    def ttft(task: Task) -> float:
        return linear(10.0, 0.1, 3 if task.arm == "a" else 4)(task)

    found = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=5, executor=MadeUp(ttft))
    assert found.ratios[0].low < 1 < found.ratios[0].high
    assert "]: no difference shown" in closing(found)


def test_it_says_when_even_the_lowest_load_fails() -> None:
    found = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(lambda task: 5.0))
    assert found.arms[0].rate is None and found.arms[0].is_done and not found.ratios
    assert "a: even the lowest load, 0.125 requests/s, does not meet ttft_p99<1.0" in closing(found)


def test_it_says_when_the_highest_load_passes() -> None:
    found = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=2, highest=40, executor=MadeUp(lambda task: 0.5))
    assert found.arms[0].high is None and found.arms[0].rate == pytest.approx(40) and not found.ratios
    assert "a: the highest load, 40 requests/s, still meets all objectives" in closing(found)


def test_what_is_not_monotone_is_said() -> None:
    def ttft(task: Task) -> float:
        return 2.0 if 10.9 < rate_of(task) < 11.4 or rate_of(task) > 14 else 0.5

    found = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=2, lowest=2, tolerance=0.02, executor=MadeUp(ttft))
    rate = found.arms[0].rate
    assert rate is not None and 10.6 < rate <= 10.9
    assert all(11.4 <= point.rate <= 14 for point in found.arms[0].contradictions)
    assert re.search(r"a: not monotone: 1\d\.\d+ requests/s does not meet the objectives, and 1[23]", closing(found))


def test_all_of_several_bounds_have_to_be_met() -> None:
    def ttft(task: Task) -> float:
        return 0.1 * rate_of(task)

    found = capacity(arms(), LOAD, "ttft_p99<9,ttft_mean<2,itl_p99<0.05", seeds=2, executor=MadeUp(ttft))
    high = found.arms[0].high
    assert high is not None and high.limited_by == ("ttft_mean<2",) and 19 < high.rate < 21.1


def test_workloads_of_loads_that_are_done_are_not_kept() -> None:
    """Each may be a trace, and a search tries dozens."""
    made: list[weakref.ref[Workload]] = []
    most = 0

    def ttft(task: Task) -> float:
        nonlocal most
        executor.tasks.clear()
        made.append(weakref.ref(task.workload))
        gc.collect()
        most = max(most, len({id(there) for one in made if (there := one()) is not None}))
        return 0.1 * rate_of(task)

    executor = MadeUp(ttft)
    found = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=3, executor=executor)
    assert len(found.arms[0].points) > 5 and most <= 9  # three seeds: of this load, the last, and as they were given


def test_an_arm_that_fails_leaves_the_others() -> None:
    def ttft(task: Task) -> float:
        if task.arm == "b" and rate_of(task) > 9:
            raise ConfigError("dear me")
        return linear(20.0)(task)

    found = capacity(arms("a", "b", "c"), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(ttft))
    assert found.of("a").rate == found.of("c").rate and found.of("b").error is not None
    assert [ratio.arm for ratio in found.ratios] == ["c"]
    assert "b failed: ConfigError: dear me" in closing(found)
    assert str(found.error()) == "dear me" and not found.was_interrupted


def test_interrupted_it_says_how_far_it_came() -> None:
    found = capacity(arms("a", "b"), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(linear(13.0), most=11))
    assert found.was_interrupted and found.arms[0].points and not found.arms[0].is_done
    assert closing(found).startswith("interrupted after 11 runs: brackets are as wide")
    with pytest.raises(KeyboardInterrupt):
        capacity(arms(), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(linear(13.0), most=0))


def test_progress_is_of_an_estimate_that_comes_true() -> None:
    told: list[tuple[str, int, int]] = []
    found = capacity(
        arms(), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(linear(13.0)), progress=lambda *a: told.append(a)
    )
    assert {label for label, *_ in told} == {RUNS}
    assert [done for _, done, _ in told] == list(range(1, found.num_runs + 1))
    assert all(done <= total for _, done, total in told) and told[-1][2] - found.num_runs <= 4


def test_a_backlog_at_the_edge_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Load(waited=0, kv_full=0, utilization=None, overloaded=True, arrival_span_s=1)
    monkeypatch.setattr(Load, "of", classmethod(lambda cls, run: plain))
    found = capacity(arms(), LOAD, "ttft_p99<1.0", seeds=2, executor=MadeUp(linear(13.0)))
    assert "a backlog grew until the end in 2 of 2 seeds: a longer workload would not meet" in closing(found)


def test_the_share_that_met_its_objectives_is_of_all_that_were_offered() -> None:
    from batchwright.request import SLO

    found = capacity(arms(), LOAD.with_slo(SLO(ttft_s=0.5)), "goodput>0.95", seeds=2, executor=MadeUp(linear(20.0)))
    rate = found.arms[0].rate
    assert rate is not None and 9.4 < rate <= 10.0
    none = capacity(arms(), LOAD, "goodput>0.95", seeds=2, highest=16, executor=MadeUp(linear(20.0)))
    assert "no request has objectives of its own, so goodput counts all that finished" in closing(none)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 1.0}, "confidence must be at least 0.5 and below 1, not 1.0"),
        ({"tolerance": 0}, "tolerance must be above 0"),
        ({"lowest": 9, "highest": 3}, "the range of loads is 9 to 3 requests/s"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"slo": "ttft<1"}, "unknown metric of --slo 'ttft'; did you mean"),
        ({"workload": load_workload("synthetic:rate=inf,n=4")}, "no rate to raise: all its requests arrive at once"),
        ({"workload": LOAD.closed(3), "lowest": 0.5}, "0.5 to 192 users: both are whole numbers"),
        ({"workload": LOAD.closed(3), "highest": 1}, "1 to 1 users: both are whole numbers, the lowest at least 1"),
        ({"workload": LOAD.closed(4), "duration_s": 9}, "Each offers 5 requests, at every load: take a longer"),
        ({"duration_s": 0.0}, "duration must be a finite number of seconds above 0, not 0.0"),
        ({"configs": {"a": EngineConfig(policy="vllm_v2")}}, "arm a: unknown policy 'vllm_v2'"),
        ({"configs": {}}, "there is no arm to run"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(options: dict[str, object], words: str) -> None:
    given = {"configs": arms(), "workload": LOAD, "slo": "ttft_p99<1", **options}
    with pytest.raises(ConfigError, match=words):
        capacity(executor=MadeUp(linear(10.0)), **given)  # type: ignore[arg-type]


# For how long, and in a closed loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["synthetic", "sessions", "a trace"])
def test_with_a_duration_the_number_of_requests_follows_from_the_rate(of: str) -> None:
    """The requests of a smaller load are the first of a larger one's."""
    spec = "synthetic:rate=8,n=20,prompt=uniform(1,99999),output=2,burstiness=100"
    load = load_workload(f"{spec},turns=2" if of == "sessions" else spec)
    load = replace(load, source="trace.csv") if of == "a trace" else load
    tried = MadeUp(linear(13.0))
    found = capacity(arms(), load, "ttft_p99<1.0", seeds=2, duration_s=30, executor=tried)
    assert found.arms[0].rate == pytest.approx(12.7, rel=0.05)
    lengths: dict[int, list[list[int | None]]] = {}
    for task in sorted(tried.tasks, key=rate_of):
        firsts = [row for row in task.workload.rows if not row.after]
        assert len(firsts) == pytest.approx(30 * rate_of(task), abs=0.51)
        assert firsts[-1].arrival_ns == pytest.approx(30e9, rel=0.02)
        lengths.setdefault(task.seed, []).append([row.num_prompt_tokens for row in firsts])
    if of != "sessions":  # whose lengths are drawn session by session, in another order
        for rows in lengths.values():
            assert all(row[: len(rows[0])] == rows[0] for row in rows)
    assert lengths[0][0][:20] != lengths[1][0][:20]
    assert found.arms[0].points[0].num_requests == pytest.approx(
        30 * found.arms[0].points[0].rate * (2 if of == "sessions" else 1), abs=1
    )
    assert "30 s of arrivals, 2 seeds" in format_capacity(found, 200)
    one = capacity(arms(), load, "ttft_p99<1.0", seeds=1, resample=False, duration_s=5, executor=tried)
    assert one.arms[0].rate is not None


def test_in_a_closed_loop_the_largest_number_of_users_is_found() -> None:
    """Each of them offers as many requests, however many there are."""
    tried = MadeUp(lambda task: (task.workload.concurrency or 0) / 13.5)
    found = capacity(arms("a", "b"), LOAD.closed(4), "ttft_p99<1.0", seeds=2, executor=tried)
    low, high = found.arms[0].low, found.arms[0].high
    assert low is not None and high is not None
    assert (low.concurrency, high.concurrency) == (13, 14) == (low.load, high.load)
    assert {point.concurrency for point in found.arms[0].points} >= {4, 8, 16}
    assert all(len(task.workload) == 5 * (task.workload.concurrency or 0) for task in tried.tasks)
    assert found.ratios[0].ratio == 1 and 13 < found.ratios[0].edge < 14
    text = format_capacity(found, 200)
    assert "capacity (users)" in text and "(4 users as given)" in text and "or to a single user" in text
    made = found.to_json()
    assert (made["unit"], made["arms"]["a"]["load"]) == ("users", 13)


def test_a_single_user_may_be_too_many() -> None:
    found = capacity(arms(), LOAD.closed(2), "ttft_p99<1.0", seeds=2, executor=MadeUp(lambda task: 2.0))
    assert "even the lowest load, 1 users, does not meet ttft_p99<1.0" in closing(found)


def simulated(saved: SavedRuns | None = None, executor: object = None) -> Capacities:
    return capacity(
        {"a": EngineConfig(policy="prefill_first"), "b": EngineConfig(policy="stall_free:chunk_size=128")},
        load_workload(SMALL),
        "itl_p99<0.02,ttft_p99<2",
        seeds=1,
        tolerance=1.0,
        saved=saved,
        executor=executor,  # type: ignore[arg-type]
    )


def test_in_the_simulator_chunks_carry_more_under_a_strict_objective(tmp_path: Path) -> None:
    """And a search goes on where it stopped: the same bytes."""
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    from batchwright.lab.executors.serial import Serial

    class Interrupted(Serial):
        num = 0

        def run(self, tasks, progress=None, keep=None):  # type: ignore[no-untyped-def]
            self.num += 1
            return super().run(tasks if self.num < 3 else tasks[:1], progress, keep)

    whole = simulated()
    a, b = whole.arms
    assert a.rate is not None and b.rate is not None and b.rate > a.rate
    part = simulated(SavedRuns(Folder(tmp_path)), Interrupted())
    assert part.was_interrupted and 0 < part.num_runs < whole.num_runs
    saved = SavedRuns(Folder(tmp_path), resume=True)
    again = simulated(saved)
    assert json.dumps(again.to_json()) == json.dumps(whole.to_json())
    assert saved.num_found == part.num_runs
