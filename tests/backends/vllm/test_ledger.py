"""What the lab and recordings know of a run inside vLLM, held to the lab's own recorder; and decisions that replay."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.v1.request import Request, RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.runs import BLOCK, POLICIES, Run, load, ours, stock
from batchwright import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import load_workload, run_arm
from batchwright.lab.materialize import Offer, Offers
from batchwright.lab.recorder import Recorder
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload
from batchwright.replay import DecisionRecorder, replay
from batchwright_backends.vllm.attaching import attach
from batchwright_backends.vllm.lab.ledger import RunLedger
from peers_vllm import Vllm, host


class Clock:
    """Stands still within a call."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def wait_until_ns(self, when_ns: int) -> None:
        self.now = max(self.now, when_ns)


def offers_of(rows: Any, clock: Clock) -> Iterator[Offer]:
    """Each arrives when it is asked for."""
    made = tuple(
        WorkloadRow(0, len(prompt), length, max_tokens=length + extra, prompt=prompt)
        for (_, prompt, length, _, _), extra in zip(rows, (0, 7, 0, 3) * len(rows), strict=False)
    )
    offers = Offers(Workload("test", made, "test"), 60, 10_000)
    return (offers.make(i, row, clock.now) for i, row in enumerate(made))


class Both:
    """A run seen by a ledger, and by the lab's own recorder where the scheduler is ours."""

    def __init__(self, run: Run, recorder: Recorder | None) -> None:
        self.run, self.recorder, self.clock = run, recorder, Clock()
        self.ledger = RunLedger(0, run.core.core.blocks.num_blocks if recorder else 0)
        if recorder is not None:
            run.core._clock = self.clock
            run.core.core.register(recorder, "recorder")
            recorder.start(self.clock)
        attach(run.core, self.ledger, self.clock.now_ns)

    def add(self, offer: Offer) -> None:
        self.ledger.offer(offer)
        request = offer.request
        self.run.add(request.request_id, request.prompt_token_ids, request.max_tokens, ignore_eos=True)
        if self.recorder is not None:
            self.recorder.offer(offer._replace(request=self.run.core.core.get(request.request_id)))

    def step(self) -> None:
        def between() -> None:
            self.clock.now += 7

        self.clock.now += 1
        self.run.step(between)

    def finish(self) -> None:
        while self.run.core.has_requests():
            self.step()


@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.integers(13, 40), st.data())
def test_the_ledger_knows_what_the_recorder_knows(seed: int, policy: str, num_blocks: int, data: st.DataObject) -> None:
    """Every field of every record, under evictions and aborts; times, prefix hits and fingerprints among them."""
    both = Both(ours(policy, num_blocks, 6, 48), Recorder())
    recorder = both.recorder
    assert recorder is not None
    for offer in offers_of(load(seed, 10), both.clock):
        both.add(offer)
        for _ in range(data.draw(st.integers(0, 3))):
            both.step()
        if data.draw(st.integers(0, 4)) == 0 and len(both.ledger.entries):
            name = data.draw(st.sampled_from(sorted(both.ledger.entries)))
            both.run.core.finish_requests([name], RequestStatus.FINISHED_ABORTED)
    both.finish()
    expected = recorder.finish()
    assert both.ledger.records == expected
    assert both.ledger.offered == recorder.offered
    assert [replace(step, index=0) for step in both.ledger.steps] == [replace(s, index=0) for s in recorder.steps]
    assert both.ledger.batches == recorder.batches


def test_the_load_evicts_and_hits() -> None:
    """The test above is about something."""
    both = Both(ours("vllm_v1", 14, 6, 48), Recorder())
    for offer in offers_of(load(3), both.clock):
        both.add(offer)
    both.finish()
    records = both.ledger.records
    assert sum(r.num_preemptions for r in records) > 3 and sum(r.num_recomputed_tokens for r in records) > 20
    assert sum(r.num_cached_tokens for r in records) > 0
    assert {r.finish_reason for r in records} == {"length", "trace"}


@given(st.integers(0, 10_000), st.integers(13, 40))
def test_stock_and_vllm_v1_are_seen_alike(seed: int, num_blocks: int) -> None:
    """The ledger stands outside: vLLM's own scheduler and ours give equal records where they decide the same."""
    seen = []
    for run, recorder in ((stock(num_blocks, 6, 48), None), (ours("vllm_v1", num_blocks, 6, 48), Recorder())):
        both = Both(run, recorder)
        both.ledger.num_blocks = num_blocks
        for offer in offers_of(load(seed, 8), both.clock):
            both.add(offer)
            both.step()
        both.finish()
        seen.append((both.ledger.records, list(both.ledger.steps), both.ledger.batches))
    assert seen[0] == seen[1]


def test_true_lengths_are_hidden_from_policies() -> None:
    """vLLM ends a request at its true length, and a policy reads what it asked for."""
    both = Both(ours("vllm_v1", 60, 6, 48), Recorder())
    (offer,) = offers_of([("a", list(range(9)), 5, 0, True)], both.clock)
    offer = offer._replace(num_output_tokens=3)
    both.add(offer)
    assert both.run.core.core.get(offer.request.request_id).max_tokens == 5
    both.finish()
    (record,) = both.ledger.records
    assert (record.num_output_tokens, record.finish_reason) == (3, "trace")


@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.integers(13, 40), st.data())
def test_decisions_replay(seed: int, policy: str, num_blocks: int, data: st.DataObject) -> None:
    """Those of our scheduler in vLLM's place, as of any other engine: with evictions, aborts, stop tokens."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "decisions.jsonl.gz"
        run = ours(policy, num_blocks, 6, 48)
        with DecisionRecorder(file, run.core.core):
            for name, prompt, max_tokens, priority, ignore_eos in load(seed, 8):
                run.add(name, prompt, max_tokens, priority, ignore_eos=ignore_eos)
                for _ in range(data.draw(st.integers(0, 2))):
                    run.step()
                if data.draw(st.integers(0, 4)) == 0:
                    run.core.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            run.finish()
        report = replay(file)
        assert report.agrees, str(report)


def test_a_replay_finds_another_policy(tmp_path: Path) -> None:
    run = ours("stall_free:chunk_size=24", 60, 6, 48)
    with DecisionRecorder(tmp_path / "d.jsonl", run.core.core):
        for row in load(1, 6):
            run.add(row[0], row[1], row[2], ignore_eos=True)
        run.finish()
    assert replay(tmp_path / "d.jsonl").agrees
    assert not replay(tmp_path / "d.jsonl", "stall_free:chunk_size=16").agrees


def recording(kind: type[Vllm], folder: Path, **section: Any) -> Run:
    said = {"batchwright": {"record": {"dir": str(folder)}, **section}}
    return Run(type("Recorded", (kind,), {"additional_config": said})(40, BLOCK, 6, 48))


class Chosen(Vllm):
    """What ``batchwright_backends.vllm.scheduler`` gives."""

    def _class(self) -> Any:
        from batchwright_backends.vllm import scheduler

        return scheduler


@pytest.mark.parametrize(
    ("kind", "policy"), [(type(host("vtc", 20, BLOCK, 4, 40)), "vtc"), (Chosen, "vtc"), (Chosen, "observe")]
)
def test_traffic_is_recorded_under_every_adapter(kind: type[Vllm], policy: str, tmp_path: Path) -> None:
    """Whoever schedules, the lab reads the requests that were there, and runs them in the simulator."""
    run = recording(kind, tmp_path, policy=policy, trust_requests=True)
    rows = load(2, 9)
    for i, (name, prompt, max_tokens, priority, _) in enumerate(rows):
        run.add(name, prompt, max_tokens, priority, ignore_eos=True, extra_args={"batchwright_client_id": f"c{i % 2}"})
        run.step()
    run.finish()
    run.core.shutdown()
    expected = {"vtc": type(run.core).__name__, "observe": "Scheduler"}[policy]
    assert type(run.core).__name__ == expected
    workload = load_workload(tmp_path)
    found = [(r.num_prompt_tokens, r.num_output_tokens, r.max_tokens, r.client_id) for r in workload.held()]
    assert found == [(len(row[1]), row[2], row[2], f"c{i % 2}") for i, row in enumerate(rows)]
    assert workload.held()[0].prefix_block_size == BLOCK
    record = run_arm(EngineConfig(policy="stall_free", block_size=BLOCK, num_blocks=200), workload)
    assert [r.num_output_tokens for r in record.requests] == [row[2] for row in rows]


@pytest.mark.parametrize("kind", [type(host("vtc", 20, BLOCK, 4, 40)), Chosen])
@pytest.mark.parametrize("trusted", [True, False])
def test_sessions_and_programs_are_recorded_as_hashes(trusted: bool, kind: type[Vllm], tmp_path: Path) -> None:
    """Who belongs together still does. What requests say of themselves counts where they are trusted, and vLLM's own
    session always."""
    run = recording(kind, tmp_path, policy="vtc", trust_requests=trusted)
    for i in range(4):
        said = {"batchwright_session_id": f"chat-{i % 2}", "batchwright_program_id": "agent-7"} if i < 3 else {}
        params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, extra_args=said)
        hasher = run.peer._hasher
        prompt = list(range(20 + i, 40))
        run.core.add_request(Request(f"r{i}", prompt, params, None, block_hasher=hasher, session_id="their-own"))
    run.finish()
    run.core.shutdown()
    rows = load_workload(tmp_path).held()
    sessions, programs = [row.session_id for row in rows], [row.program_id for row in rows]
    if trusted:
        assert sessions[0] == sessions[2] and len(set(sessions)) == 3
        assert programs[0] == programs[1] == programs[2] != programs[3] is None
    else:
        assert len(set(sessions)) == 1 and set(programs) == {None}
    hashes = {*sessions, *programs} - {None}
    assert all(re.fullmatch("[0-9a-f]{16}", str(name)) for name in hashes)


def test_recorded_prefixes_are_shared_in_the_simulator_as_they_were(tmp_path: Path) -> None:
    """Prompts are made up again, and hit the prefix cache for the same tokens."""
    run = recording(Chosen, tmp_path, policy="observe")
    shared = list(range(50, 58)) * 6
    rng = random.Random(1)
    for i in range(6):
        run.add(f"r{i}", [*(shared if i % 2 else ()), *(rng.randrange(60) for _ in range(30))], 4, ignore_eos=True)
        run.step()
    run.finish()
    run.core.shutdown()
    record = run_arm(EngineConfig(policy="observe", block_size=BLOCK, num_blocks=200), load_workload(tmp_path))
    assert [r.num_cached_tokens for r in record.requests] == [0, 0, 0, 48, 0, 48]


def test_observe_is_vllms_own_scheduler_and_says_so_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]

    def chosen(section: dict[str, Any]) -> Any:
        return type("C", (Chosen,), {"additional_config": {"batchwright": section}})(40, BLOCK, 6, 48).core

    assert type(chosen({"policy": "observe"})) is Scheduler
    for section in ({"policy": "observe", "max_num_residents": 3}, {"policy": {"use": "observe", "a": 1}}):
        with pytest.raises(ConfigError, match=r"leaves vLLM's scheduler as it is, and .* would change nothing"):
            chosen(section)
    with pytest.raises(ConfigError, match="HostScheduler takes its place"):
        host("observe", 40, BLOCK, 6, 48)
    monkeypatch.setenv("BATCHWRIGHT_VLLM", "off")
    assert type(chosen({"policy": "vtc", "record": "/nowhere"})) is Scheduler


def test_settings_of_a_recording_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batchwright\.record.part_mib: .* greater than 0"):
        recording(Chosen, tmp_path, policy="observe", record={"dir": str(tmp_path), "part_mib": 0})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="record: cannot write to"):
        recording(Chosen, tmp_path, policy="observe", record=str(tmp_path / "file"))
