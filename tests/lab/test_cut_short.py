"""Runs that are cut short, and requests: limits, Ctrl-C, faults, aborts."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from batchwright.backend import RealClock, StepResult
from batchwright.engine import Engine
from batchwright.hookspecs import hookimpl
from batchwright.lab import Recorder, Workload, WorkloadRow, load_workload, offers, run_arm
from batchwright.lab.run_record import RunRecord
from lab.machine import MIXED, MS, Machine, config, statuses


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
