"""Running an arm: what is recorded is what happened."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

import pytest

from batchwright.backend import Backend, Capacity, RealClock, StepResult, VirtualClock
from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import WorkloadError
from batchwright.hookspecs import Refusal, hookimpl
from batchwright.lab import Recorder, Workload, WorkloadRow, load_workload, offers, run_arm
from batchwright.lab.riding import key_of
from batchwright.lab.run_record import RunRecord
from batchwright.policy import Policy

MS = 1_000_000
MIXED = "synthetic:rate=200,n=40,prompt=uniform(5,90),output=uniform(1,30),prefix=32,prefixes=3,clients=2,seed=7"


class Machine(Backend):
    """A step takes 1 ms and 10 µs a token; its pool and the steps that fail are given."""

    name = "machine"

    def __init__(self, num_blocks: int = 1000, *, real: bool = False, fails: tuple[int, ...] = ()) -> None:
        self.clock = RealClock() if real else VirtualClock()
        self._num_blocks = num_blocks
        self._fails = fails
        self._num_steps = 0

    def capacity(self) -> Capacity:
        return Capacity(self._num_blocks, block_size=4, max_model_len=200, vocab_size=1000)

    def submit(self, batch: Any) -> StepResult:
        elapsed = MS + 10_000 * batch.num_tokens
        self._num_steps += 1
        if self._num_steps in self._fails:
            raise RuntimeError("out of order")
        self.clock.wait_until_ns(self.clock.now_ns() + elapsed)
        return StepResult([5] * int(batch.samples.sum()), elapsed)

    def collect(self, handle: StepResult) -> StepResult:
        return handle


class Watcher:
    """Records in the plainest way, beside the recorder."""

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.batches: list[list[tuple[str, int]]] = []
        self.stays: dict[str, list[tuple[str, int]]] = {}  # what happened to its blocks, and when

    @hookimpl
    def request_admitted(self, step: Any, request: Any) -> None:
        self.cached.setdefault(request.request_id, request.num_cached)
        self.stays.setdefault(request.request_id, []).append(("in", step.now))

    @hookimpl
    def request_preempted(self, step: Any, victim: Any) -> None:
        self.stays.setdefault(victim.request_id, []).append(("out", step.now))

    @hookimpl
    def step_finished(self, step: Any) -> None:
        for r in step.sampled:
            self.times.setdefault(r.request_id, []).append(step.end)
        self.batches.append([(r.request_id, r.num_scheduled) for r in step.batch])
        self.steps.append(
            (
                step.index,
                step.now,
                step.end,
                step.num_prefill_tokens,
                step.num_decodes,
                len(step.preempted),
                len(step.waiting),
                len(step.running),
                step.free_blocks,
                len(step.batch),
            )
        )


def config(**values: Any) -> EngineConfig:
    return EngineConfig(**({"max_num_seqs": 8, "max_num_batched_tokens": 64} | values))


def statuses(run: RunRecord) -> list[str]:
    return [r.status for r in run.requests]


@pytest.mark.parametrize("num_blocks", [1000, 60])
@pytest.mark.parametrize("policy", ["prefill_first", "stall_free:chunk_size=16", "vllm_v1"])
def test_records_hold_what_a_plain_observer_sees(num_blocks, policy) -> None:
    watcher = Watcher()
    load = load_workload(MIXED)
    run = run_arm(config(policy=policy), load, backend=Machine(num_blocks), plugins=[watcher])
    assert run.stopped is None
    assert statuses(run) == ["finished"] * 40
    by_row = dict(zip([r.request_id for r in run.requests], load.rows, strict=True))
    for r in run.requests:
        assert list(r.token_times_ns) == watcher.times[r.request_id]
        assert r.num_cached_tokens == watcher.cached[r.request_id]
        assert r.finish_ns == r.token_times_ns[-1]
        assert r.arrival_ns <= r.first_scheduled_ns < r.token_times_ns[0]
        assert (r.finish_reason, r.error) == ("trace", None)
        stays = watcher.stays[r.request_id]
        assert [kind for kind, _ in stays] == ["in", *["out", "in"] * r.num_preemptions]
        assert list(r.preempted_ns) == [when for kind, when in stays if kind == "out"]
        assert list(r.resumed_ns) == [when for kind, when in stays[1:] if kind == "in"]
        row = by_row[r.request_id]
        assert r.num_output_tokens == len(r.token_times_ns) == row.num_output_tokens
        assert (r.num_prompt_tokens, r.client_id, r.arrival_ns) == (
            row.num_prompt_tokens,
            row.client_id,
            row.arrival_ns,
        )
    steps = [(s.index, s.start_ns, s.end_ns, s.num_prefill_tokens, s.num_decodes) for s in run.steps]
    assert steps == [s[:5] for s in watcher.steps]
    rest = [(s.num_preempted, s.num_waiting, s.num_running, s.free_blocks, s.batch_size) for s in run.steps]
    assert rest == [s[5:] for s in watcher.steps]
    assert run.duration_ns == run.steps[-1].end_ns
    assert sum(r.num_preemptions for r in run.requests) == sum(s.num_preempted for s in run.steps)
    if num_blocks == 60:
        assert sum(r.num_preemptions for r in run.requests) > 0
        assert sum(r.num_recomputed_tokens for r in run.requests) > 0
    assert sum(r.num_cached_tokens for r in run.requests) > 0
    assert len(run.batches) == len(run.steps)
    known: dict[int, list[tuple[str, int]]] = {}
    for fingerprint, batch in zip(run.batches, watcher.batches, strict=True):
        assert known.setdefault(fingerprint, batch) == batch
    assert len(known) == len({tuple(b) for b in watcher.batches})


def test_fingerprints_are_those_of_rows_and_counts() -> None:
    load = Workload("w", (WorkloadRow(0, 70, 2), WorkloadRow(0, 5, 2)), "w")
    run = run_arm(config(policy="stall_free:chunk_size=64"), load, backend=Machine())
    # 64 tokens of the first; its last 6 and all 5 of the second; both decode.
    expected = [[(0, 64)], [(0, 6), (1, 5)], [(0, 1), (1, 1)]]
    assert list(run.batches) == [sum(key_of(*row) for row in e) % 2**64 for e in expected]


def test_the_loop_is_open_and_skips_idle_time() -> None:
    rows = (WorkloadRow(0, 10, 20), WorkloadRow(5 * MS, 10, 1), WorkloadRow(10_000 * MS, 10, 1))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    first, second, third = run.requests
    # The second arrives while a step runs, and waits for the next; it prefills before the first decodes on.
    assert first.finish_ns > second.finish_ns
    assert second.arrival_ns == 5 * MS
    assert second.first_scheduled_ns == min(s.start_ns for s in run.steps if s.start_ns >= 5 * MS)
    assert third.first_scheduled_ns == 10_000 * MS
    assert sum(s.end_ns - s.start_ns for s in run.steps) < 100 * MS


def test_times_count_from_the_start_of_the_run() -> None:
    late = Machine()
    late.clock.wait_until_ns(3_000_000_000)
    load = load_workload(MIXED)
    run = run_arm(config(), load, backend=late)
    base = run_arm(config(), load, backend=Machine())
    assert run == base


def test_a_run_in_real_time() -> None:
    load = load_workload("synthetic:rate=200,n=10,prompt=10,output=3")
    run = run_arm(config(), load, backend=Machine(real=True))
    assert statuses(run) == ["finished"] * 10
    assert not run.virtual_time
    assert run.duration_ns >= load.rows[-1].arrival_ns
    for r in run.requests:
        assert r.token_times_ns[0] - r.arrival_ns >= MS
        assert list(r.token_times_ns) == sorted(r.token_times_ns)


def test_what_the_engine_refuses_stays_with_its_error() -> None:
    rows = (WorkloadRow(0, 199, 5), WorkloadRow(0, 200, 5), WorkloadRow(0, 201, 5), WorkloadRow(MS, 150, 40))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    assert statuses(run) == ["finished", "refused", "refused", "finished"]
    assert "200" in (run.requests[1].error or "")
    assert "201" in (run.requests[2].error or "")
    assert run.requests[0].num_output_tokens == 1
    assert run.requests[0].finish_reason == "length"
    assert run.requests[2].finish_ns is None
    assert [o.request_id for o in run.offered] == [r.request_id for r in run.requests]


def test_what_the_policy_refuses_stays_with_its_reason() -> None:
    class Shedder(Policy):
        @hookimpl
        def arrival(self, request: Any) -> bool | Refusal:
            return Refusal("too long for today") if request.num_prompt_tokens > 50 else True

    rows = (WorkloadRow(0, 50, 2), WorkloadRow(0, 51, 2))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine(), policy=Shedder())
    assert statuses(run) == ["finished", "refused"]
    assert "too long for today" in (run.requests[1].error or "")


def test_the_rule_model_declares_no_more_than_the_pool_can_hold() -> None:
    load = Workload("w", (WorkloadRow(0, 10, 5),), "w")
    run = run_arm(config(), load, backend=Machine(num_blocks=8))  # 32 tokens, and the last one needs no room
    assert run.offered[0].max_tokens == 23
    assert statuses(run) == ["finished"]
    assert run_arm(config(), load, backend=Machine()).offered[0].max_tokens == 190
    assert run_arm(config(max_model_len=40), load, backend=Machine()).offered[0].max_tokens == 30


def test_a_limit_of_steps_or_time_leaves_the_rest_unfinished() -> None:
    load = load_workload(MIXED)
    run = run_arm(config(), load, backend=Machine(), max_steps=10)
    assert run.stopped == "max_steps"
    assert len(run.steps) == 10
    assert len(run.requests) == len(run.offered) == 40
    assert statuses(run).count("unfinished") > 30
    begun = [r for r in run.requests if r.status == "unfinished" and r.num_output_tokens]
    assert begun
    assert all(len(r.token_times_ns) == r.num_output_tokens and r.finish_ns is None for r in begun)

    run = run_arm(config(), load, backend=Machine(), max_seconds=0.1)
    assert run.stopped == "max_seconds"
    assert 0.1 <= run.duration_s < 0.11
    assert {"finished", "unfinished"} == set(statuses(run))
    idle = Workload("w", (WorkloadRow(0, 5, 1), WorkloadRow(9_000 * MS, 5, 1)), "w")
    run = run_arm(config(), idle, backend=Machine(), max_seconds=1)
    assert (run.duration_s, statuses(run)) == (1, ["finished", "unfinished"])


class Interrupt:
    """A user who presses Ctrl-C while a step is told to the observers."""

    @hookimpl
    def step_finished(self, step: Any) -> None:
        if step.index == 12:
            signal.raise_signal(signal.SIGINT)


class InterruptInBackend(Machine):
    """A user who presses Ctrl-C twice while a batch is executed."""

    def submit(self, batch: Any) -> StepResult:
        if batch.step_index == 12:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return super().submit(batch)


@pytest.mark.parametrize("where", ["observer", "backend"])
def test_an_interrupt_keeps_what_is_done(where) -> None:
    load = load_workload(MIXED)
    before = signal.getsignal(signal.SIGINT)
    if where == "observer":
        run = run_arm(config(), load, backend=Machine(), plugins=[Interrupt()])
        assert len(run.steps) == 13  # the step was brought to its end
    else:
        run = run_arm(config(), load, backend=InterruptInBackend())
    assert signal.getsignal(signal.SIGINT) is before
    assert run.stopped == "interrupted"
    assert len(run.requests) == 40
    assert "unfinished" in statuses(run)
    assert "aborted" not in statuses(run)
    assert len(run.steps) == len(run.batches) >= 12
    whole = run_arm(config(), load, backend=Machine())
    assert run.offered == whole.offered
    for r, w in zip(run.requests, whole.requests, strict=True):
        assert list(r.token_times_ns) == list(w.token_times_ns)[: r.num_output_tokens]
        if r.status == "finished":
            assert r == w


def test_an_interrupt_does_not_wait_for_the_next_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Workload("w", (WorkloadRow(0, 5, 1), WorkloadRow(60_000 * MS, 5, 1)), "w")
    main = threading.get_ident()  # where a terminal's signal goes
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    wait = RealClock.wait_until_ns

    def interrupted(clock: RealClock, when_ns: int) -> None:
        if when_ns > 1000 * MS and not timer.ident:
            timer.start()  # now, and not before the run listens: a busy machine may take its time until then
        wait(clock, when_ns)

    monkeypatch.setattr(RealClock, "wait_until_ns", interrupted)
    run = run_arm(config(), load, backend=Machine(real=True))
    timer.join()
    assert (run.stopped, statuses(run)) == ("interrupted", ["finished", "unfinished"])
    assert run.duration_s < 30


def test_a_run_in_another_thread_leaves_signals_alone() -> None:
    runs: list[RunRecord] = []
    thread = threading.Thread(target=lambda: runs.append(run_arm(config(), load_workload(MIXED), backend=Machine())))
    thread.start()
    thread.join()
    assert statuses(runs[0]) == ["finished"] * 40


def test_requests_of_a_failed_step_are_failed_and_the_run_goes_on() -> None:
    load = load_workload(MIXED)
    run = run_arm(config(), load, backend=Machine(fails=(9,)))
    failed = [r for r in run.requests if r.status == "failed"]
    assert failed
    assert all(r.finish_reason == "error" and "out of order" in (r.error or "") for r in failed)
    assert all(r.finish_ns is not None for r in failed)
    assert statuses(run).count("finished") == 40 - len(failed)
    assert [e["kind"] for e in run.events] == ["backend_fault"]


def test_a_failed_step_can_be_tried_again() -> None:
    run = run_arm(config(on_backend_error="retry"), load_workload(MIXED), backend=Machine(fails=(9,)))
    assert statuses(run) == ["finished"] * 40


def test_aborted_requests_say_when_they_ended() -> None:
    recorder = Recorder()
    load = load_workload("synthetic:rate=inf,n=3,prompt=10,output=50")
    with Engine(config(), backend=Machine(), plugins=[recorder]) as engine:
        start = recorder.start(engine.clock)
        for offer in offers(load, 1000, 200, start_ns=start):
            recorder.offer(offer)
            engine.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        for _ in range(5):
            engine.advance()
        engine.abort("r000001")
        when = engine.clock.now_ns()
        while engine.has_unfinished():
            engine.advance()
        records = recorder.finish()
    assert [r.status for r in records] == ["finished", "aborted", "finished"]
    assert records[1].finish_ns == when
    assert records[1].num_output_tokens == len(records[1].token_times_ns) == 5


def test_a_lost_step_is_noticed() -> None:
    recorder = Recorder()
    load = load_workload("synthetic:rate=inf,n=1,prompt=10,output=5")
    with Engine(config(), backend=Machine(), plugins=[recorder]) as engine:
        recorder.start(engine.clock)
        (offer,) = offers(load, 1000, 200)
        recorder.offer(offer)
        engine.add_request(offer.request, num_output_tokens=5)
        engine.advance()
        step_finished, engine.scheduler._hooks.step_finished = engine.scheduler._hooks.step_finished, ()
        engine.advance()  # and the recorder is not told
        engine.scheduler._hooks.step_finished = step_finished
        while engine.has_unfinished():
            engine.advance()
        with pytest.raises(RuntimeError, match="5 output tokens and 4 token times"):
            recorder.finish()


class Spy(Policy):
    """A policy that looks for the true length wherever the contract lets it look."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def look(self, request: Any) -> None:
        for thing in (request, request.sampling_params):
            values = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
            plain = {name: v for name, v in values.items() if v is None or isinstance(v, (int, float, str, tuple))}
            self.seen.append((plain, list(request.prompt_token_ids), list(request.output_token_ids)))

    @hookimpl
    def arrival(self, request: Any) -> bool:
        self.look(request)
        return True

    @hookimpl
    def step_started(self, step: Any) -> None:
        for request in (*step.waiting, *step.running):
            self.look(request)

    @hookimpl
    def request_admitted(self, step: Any, request: Any) -> None:
        self.look(request)


@pytest.mark.parametrize(("declared", "hidden"), [("model", True), (150, True), ("exact", False)])
def test_nothing_that_a_policy_can_read_depends_on_the_true_length(declared, hidden) -> None:
    """Until the shorter of two runs ends, both look the same to the policy; with ``exact`` they do not."""
    seen = []
    for num_output_tokens in (83, 97):
        spy = Spy()
        load = Workload("w", (WorkloadRow(0, 17, num_output_tokens),), "w")
        run = run_arm(config(), load, backend=Machine(), policy=spy, declared=declared)
        assert run.requests[0].num_output_tokens == num_output_tokens
        seen.append(spy.seen)
    short, long = seen
    assert len(short) > 83
    assert (long[: len(short)] == short) == hidden


def test_records_are_the_same_each_time_to_the_byte() -> None:
    load = load_workload(MIXED)
    one = run_arm(EngineConfig(max_num_batched_tokens=256), load)
    two = run_arm(EngineConfig(max_num_batched_tokens=256), load_workload(MIXED))
    assert one.dumps() == two.dumps()
    assert one.virtual_time
    assert one.backend.startswith("sim:")


def test_records_survive_a_file() -> None:
    run = run_arm(config(), load_workload(MIXED), backend=Machine(60), max_steps=80)
    assert RunRecord.from_json(json.loads(run.dumps())) == run


def test_a_file_of_another_version_or_kind_is_refused() -> None:
    run = run_arm(config(), load_workload("synthetic:n=1,prompt=10"), backend=Machine())
    value = json.loads(run.dumps())
    with pytest.raises(WorkloadError, match="record_version is 99; this Batchwright reads 1"):
        RunRecord.from_json(value | {"record_version": 99})
    del value["steps"][0]["end_s"]
    with pytest.raises(WorkloadError, match="not a run record of version 1: KeyError"):
        RunRecord.from_json(value)


REQUEST_FIELDS = """
request_id client_id priority arrival_s first_scheduled_s token_times_s finish_s num_prompt_tokens num_output_tokens
num_cached_tokens num_recomputed_tokens num_preemptions slo status finish_reason error replica
weight slo_class preempted_s resumed_s session_id program_id
"""
STEP_FIELDS = """
index start_s end_s num_prefill_tokens num_decodes num_preempted num_waiting num_running free_blocks replica
batch_size
"""


def test_json_has_the_fields_of_the_schema() -> None:
    run = run_arm(config(), load_workload("synthetic:n=2,prompt=10,output=3"), backend=Machine())
    value = json.loads(run.dumps())
    assert list(value["requests"][0]) == REQUEST_FIELDS.split()
    assert list(value["steps"][0]) == STEP_FIELDS.split()
    assert len(value["requests"][0]["token_times_s"]) == 3


def test_what_records_of_before_lack_has_a_default() -> None:
    record = run_arm(config(), load_workload("synthetic:n=2,prompt=10,output=3"), backend=Machine())
    value = json.loads(record.dumps())
    for name in ("weight", "slo_class", "preempted_s", "resumed_s", "session_id", "program_id"):
        for one in value["requests"]:
            del one[name]
    for one in value["steps"]:
        del one["batch_size"]
    old = RunRecord.from_json(value)
    assert old.requests == record.requests
    assert {s.batch_size for s in old.steps} == {0}


def test_a_record_says_the_weight_of_its_client() -> None:
    rows = tuple(WorkloadRow(0, 9, 2, client_id="a", weight=w) for w in (1.0, 2.5))
    record = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    assert [r.weight for r in record.requests] == [1.0, 2.5]


def test_progress_is_told_and_ends_with_all() -> None:
    told: list[tuple[str, int, int]] = []
    run_arm(config(), load_workload(MIXED), backend=Machine(), arm="mine", progress=lambda *a: told.append(a))
    assert told[-1] == ("mine", 40, 40)
    assert [n for _, n, _ in told] == sorted(n for _, n, _ in told)


@pytest.mark.parametrize("limit", [{"max_steps": 0}, {"max_seconds": -1.0}, {"max_seconds": float("nan")}])
def test_limits_out_of_range(limit) -> None:
    with pytest.raises(WorkloadError, match="must be above 0"):
        run_arm(config(), load_workload("synthetic:n=1,prompt=10"), backend=Machine(), **limit)


def test_a_workload_without_requests() -> None:
    with pytest.raises(WorkloadError, match="has no requests"):
        run_arm(config(), Workload("empty", (), "empty"), backend=Machine())
