"""Recording is exact: whatever happens to a scheduler, a replay decides the same."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import BatchwrightError, PolicyError, RefusedRequestError
from batchwright.hookspecs import hookimpl
from batchwright.limits import Limits
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Params, Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.replay import DecisionRecorder, read_cases, replay
from batchwright.request import SLO, Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.testing.reference import Reference
from testing.random_policy import RandomPolicy

SETTINGS: dict[str, Any] = {
    "num_blocks": 12,
    "block_size": 2,
    "limits": Limits(max_num_seqs=3, max_num_batched_tokens=9),
    "prefix_cache": PrefixCache(visible="scheduled"),
    "eos_token_ids": (0,),
    "seed": 5,
}


class Hurried(Policy):
    """Cuts prompts to what a step's time allows."""

    uses_predict = True

    class Params(Params):
        most_s: float = 0.01

    @hookimpl
    def chunking(self, step, request):
        tokens = min(request.num_pending, step.budget)
        while tokens > 1 and step.predict_s(request, tokens) > self.params.most_s:
            tokens -= 1
        return tokens


class Silent(Policy):
    """Never offers anybody anything."""

    @hookimpl
    def admission(self, step):
        return ()


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    found = load_plugins()
    found.policies |= {"random_policy": RandomPolicy, "hurried": Hurried, "silent": Silent}
    return found


def play(scheduler: Any, rng: random.Random, num_steps: int, others: list[Any]) -> None:
    """Everything that can happen to a scheduler, by chance."""
    number = now = 0

    def live() -> list[str]:
        return [r.request_id for r in (*scheduler.waiting, *scheduler.running)]

    def add() -> None:
        nonlocal number
        number += 1
        name = f"r{number % 7}"  # ids come again
        if name in live():
            return
        shared = [1, 2, 1, 1, 2, 2][: rng.choice([0, 4, 6])]
        request = Request(
            name,
            [*shared, *(rng.randrange(3) for _ in range(rng.randint(1, 6)))],
            SamplingParams(
                max_tokens=rng.randint(1, 8), ignore_eos=rng.random() < 0.8, stop_token_ids=(2,) * (number % 2)
            ),
            arrival_ns=now,
            priority=rng.randrange(3),
            client_id=rng.choice([None, "anna"]),
            weight=rng.choice([1.0, 0.1]),
            deadline_s=rng.choice([None, 0.3]),
            slo=rng.choice([None, SLO(ttft_s=0.2)]),
            predicted_output_tokens=rng.choice([None, 4]),
            session_id=rng.choice([None, "s"]),
            extra=rng.choice([None, {"tier": 1}]),
        )
        stop_check = None
        if rng.random() < 0.2:
            end = request.num_prompt_tokens + rng.randint(1, 4)
            stop_check = lambda _token: request.num_tokens >= end  # noqa: E731 - as a stop string would
        with contextlib.suppress(RefusedRequestError, PolicyError):
            scheduler.add(request, num_output_tokens=rng.choice([None, None, 2]), stop_check=stop_check)

    def abort() -> None:
        if rng.random() < 0.08 and live():
            scheduler.abort(rng.choice(live()), error=rng.choice([None, "its text cannot be decoded"]))

    for _ in range(num_steps):
        while rng.random() < 0.5 and len(live()) < 6:
            add()
        abort()
        if others and rng.random() < 0.1:
            other = rng.choice(others)
            scheduler.swap_policy(other if isinstance(other, str) else other())
        if not scheduler.has_unfinished():
            continue
        now += 1000
        try:
            batch = scheduler.schedule(now)
        except PolicyError:
            abort()
            continue
        tokens = [rng.randrange(3) for row in batch.samples.tolist() if row]
        there = list(batch.request_ids)
        abort()
        if rng.random() < 0.1:
            add()
        now += 1000
        if there and rng.random() < 0.08:
            scheduler.fail(batch, "lost", retry=rng.random() < 0.6, now=now)
        else:
            failed = {rng.choice(there): "NaN"} if there and rng.random() < 0.05 else {}
            scheduler.update(batch, tokens, now, failed)


@pytest.mark.parametrize(
    ("on_policy_error", "fallback"),
    [("raise", None), ("fallback", None), ("fallback", {"use": "vllm_v1", "scheduling_policy": "priority"})],
)
@pytest.mark.parametrize("seed", range(12))
def test_random_policies_with_everything_that_can_happen(tmp_path, plugins, seed, on_policy_error, fallback):
    rng = random.Random(seed)
    file = tmp_path / "decisions.jsonl"

    def policy() -> RandomPolicy:
        return RandomPolicy(seed=rng.randrange(1000), fault_rate=0.03, refusal_rate=0.1)

    scheduler = Scheduler(policy(), **SETTINGS, on_policy_error=on_policy_error, fallback_policy=fallback)
    with DecisionRecorder(file, scheduler):
        play(scheduler, rng, 60, [policy, lambda: plugins.policy("vllm_v1")(scheduling_policy="priority")])
    for make in (Scheduler, Reference):
        report = replay(file, scheduler_factory=make, plugins=plugins)
        assert report.agrees, str(report)
    [case] = read_cases(file)
    assert len(case.steps) == scheduler._num_steps > 30


def test_what_the_random_runs_record(tmp_path, plugins):
    """They do come to every kind of event, so that the test above tests what it says."""
    kinds: set[tuple[str, bool]] = set()
    raised = stopped = hidden = 0
    for seed in range(12):
        scheduler = Scheduler(RandomPolicy(seed=seed, fault_rate=0.03, refusal_rate=0.1), **SETTINGS)
        with DecisionRecorder(tmp_path / "decisions.jsonl", scheduler):
            play(scheduler, random.Random(seed), 60, [lambda: plugins.policy("stall_free")(chunk_size=4)])
        [case] = read_cases(tmp_path / "decisions.jsonl")
        kinds |= {(event.kind, event.during) for event in case.events}
        raised += sum("raised" in step for step in case.steps)
        stopped += sum(r.stopped_at is not None for r in case.requests.values())
        hidden += sum(r.num_output_tokens is not None for r in case.requests.values())
    assert kinds >= {(k, d) for k in ("add", "abort", "error") for d in (False, True)}
    assert kinds >= {("refuse", False), ("swap", False), ("failed", True), ("fail", True), ("retry", True)}
    assert min(raised, stopped, hidden) > 3


@pytest.mark.parametrize("policy", ["prefill_first:decode_interleave=2", "vllm_v1", "stall_free:chunk_size=8"])
def test_an_engine_on_the_simulator(tmp_path, policy):
    config = EngineConfig(
        policy=policy,
        backend="sim:llama-3.1-8b@h100",
        num_blocks=24,
        block_size=4,
        max_num_batched_tokens=32,
        max_num_seqs=6,
        max_model_len=64,
    )
    file = tmp_path / "decisions.jsonl.gz"
    engine = Engine(config)
    rng = random.Random(policy)
    with DecisionRecorder(file, engine.scheduler, case="on the simulator"):
        for k in range(30):
            prompt = [7, 8, 9, 7, 8, 9, 7, 8][: 4 * (k % 3)] + [rng.randrange(50) for _ in range(rng.randint(1, 20))]
            request = Request(f"r{k}", prompt, SamplingParams(max_tokens=12, ignore_eos=True))
            engine.add_request(request, num_output_tokens=rng.randint(1, 12))
            engine.step()
        while engine.has_unfinished():
            engine.step()
    engine.close()
    for make in (Scheduler, Reference):
        report = replay(file, scheduler_factory=make)
        assert report.agrees, str(report)
    [case] = read_cases(file)
    assert case.name == "on the simulator"
    assert sum(len(step["preempted"]) for step in case.steps) > 0
    assert len(case.requests) == 30


def test_predictions_are_fed_back(tmp_path, plugins):
    file = tmp_path / "decisions.jsonl"
    scheduler = Scheduler(Hurried(most_s=0.004), **SETTINGS, predict_s=lambda batch: batch.num_tokens**1.1 / 1000)
    with DecisionRecorder(file, scheduler):
        play(scheduler, random.Random(3), 40, [])
    report = replay(file, plugins=plugins)
    assert report.agrees, str(report)
    data = json.loads(file.read_text())
    assert len(data["predictions"]) > 20
    data["predictions"] = [100.0 for _ in data["predictions"]]
    file.write_text(json.dumps(data))
    assert not replay(file, plugins=plugins).agrees


def test_another_policy_or_parameter_parts(tmp_path):
    file = tmp_path / "decisions.jsonl"
    stall_free = load_plugins().policy("stall_free")
    scheduler = Scheduler(stall_free(chunk_size=4), **SETTINGS)
    with DecisionRecorder(file, scheduler):
        play(scheduler, random.Random(1), 40, [])
    assert replay(file).agrees
    assert replay(file, stall_free(chunk_size=4)).agrees
    assert replay(file, "stall_free:chunk_size=4").agrees
    for other in ("stall_free", "stall_free:chunk_size=5", "vllm_v1", {"use": "prefill_first"}):
        assert not replay(file, other).agrees


class Meddler:
    """An observer that aborts whenever it hears of a step."""

    name = "meddler"

    def __init__(self) -> None:
        self.rng = random.Random(4)
        self.scheduler: Any = None

    def meddle(self) -> None:
        live = [r.request_id for r in (*self.scheduler.waiting, *self.scheduler.running)]
        if live and self.rng.random() < 0.3:
            self.scheduler.abort(self.rng.choice(live))

    @hookimpl
    def step_started(self, step):
        self.meddle()

    @hookimpl
    def step_finished(self, step):
        self.meddle()


@pytest.mark.parametrize("is_first", [True, False])
def test_aborts_by_other_observers_are_exact(tmp_path, is_first):
    file = tmp_path / "decisions.jsonl"
    scheduler = Scheduler("stall_free:chunk_size=4", **SETTINGS)
    meddler = Meddler()
    meddler.scheduler = scheduler
    if is_first:
        scheduler.register(meddler)
    with DecisionRecorder(file, scheduler):
        if not is_first:
            scheduler.register(meddler)
        play(scheduler, random.Random(6), 80, [])
    assert scheduler.num_observer_faults == 0
    report = replay(file)
    assert report.agrees, str(report)
    [case] = read_cases(file)
    assert len(case.steps) == scheduler._num_steps
    assert sum(event.kind == "abort" for event in case.events) > 10


def test_equal_runs_write_equal_files(tmp_path):
    files = [tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"]
    for file in files:
        scheduler = Scheduler("vllm_v1", **SETTINGS)
        with DecisionRecorder(file, scheduler) as recorder:
            play(scheduler, random.Random(2), 20, [])
        recorder.close()  # once more changes nothing
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_step_whose_results_never_came_is_left_out(tmp_path):
    file = tmp_path / "decisions.jsonl"
    scheduler = Scheduler("prefill_first", **SETTINGS)
    with DecisionRecorder(file, scheduler):
        scheduler.add(Request("r", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True)))
        scheduler.update(scheduler.schedule(), [1])
        scheduler.schedule()
    report = replay(file)
    assert (report.agrees, report.num_steps) == (True, 1)


def test_the_step_that_ended_the_run_is_recorded(tmp_path, plugins):
    file = tmp_path / "decisions.jsonl"
    scheduler = Scheduler(Silent(), **SETTINGS)
    with DecisionRecorder(file, scheduler):
        scheduler.add(Request("r", [1, 2, 3], SamplingParams(max_tokens=2)))
        with pytest.raises(PolicyError):
            scheduler.schedule(9)
    [case] = read_cases(file)
    assert case.steps == [{"step": 0, "now": 9, "raised": True, "preempted": []}]
    assert replay(file, plugins=plugins).agrees
    report = replay(file, "prefill_first")
    assert report.differences[0].step == 0


def test_it_begins_with_a_fresh_scheduler(tmp_path):
    scheduler = Scheduler("prefill_first", **SETTINGS)
    scheduler.add(Request("r", [1, 2, 3], SamplingParams(max_tokens=2)))
    with pytest.raises(BatchwrightError, match="a recording begins with a fresh scheduler"):
        DecisionRecorder(tmp_path / "decisions.jsonl", scheduler)
    assert not (tmp_path / "decisions.jsonl").exists()


def test_a_file_that_cannot_be_written_fails_at_once(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        DecisionRecorder(Path(tmp_path / "nowhere" / "decisions.jsonl"), Scheduler("prefill_first", **SETTINGS))


def test_a_composite_policy_is_recorded_slot_by_slot(tmp_path):
    file = tmp_path / "decisions.jsonl"
    spec = {"admission": "vllm_v1", "chunking": {"use": "stall_free", "chunk_size": 4}, "preemption": "prefill_first"}
    scheduler = Scheduler(spec, **SETTINGS)
    with DecisionRecorder(file, scheduler):
        play(scheduler, random.Random(8), 40, ["vllm_v1", "stall_free:chunk_size=3"])
    report = replay(file)
    assert report.agrees, str(report)
    assert json.loads(file.read_text())["policy"]["chunking"] == {"use": "stall_free", "chunk_size": 4}
