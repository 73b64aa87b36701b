"""The batches that records tell are those that ran."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from batchwright.backend import BackendSettings, StepResult
from batchwright.batch import Batch
from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright_backends.sim.backend import SimBackend
from batchwright_backends.sim.recorded_steps import recorded_steps

Rows = list[tuple[int, int]]


class Watched(SimBackend):
    """Keeps what ran: tokens computed before and tokens of the step, for each row."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(BackendSettings("llama-3.1-8b@h100", num_blocks=num_blocks))
        self.batches: list[Rows] = []

    def submit(self, batch: Batch) -> StepResult:
        self.batches.append(
            sorted(zip(np.array(batch.num_computed).tolist(), np.array(batch.num_scheduled).tolist(), strict=True))
        )
        return super().submit(batch)


def run(policy: str, num_blocks: int = 4000, workload: str = "", **settings: object) -> tuple[RunRecord, list[Rows]]:
    backend = Watched(num_blocks)
    spec = workload or "synthetic:rate=20,n=60,prompt=lognormal(400,0.9),output=uniform(2,60),seed=5"
    config = EngineConfig.parse({"policy": policy, "max_num_batched_tokens": 512, **settings})
    record = run_arm(config, load_workload(spec), backend=backend, declared="exact", leap=False)
    assert len(record.steps) == len(backend.batches)
    return record, backend.batches


@pytest.mark.parametrize("policy", ["vllm_v1", "prefill_first", "stall_free:chunk_size=64", "orca"])
def test_what_is_told_is_what_ran(policy: str) -> None:
    record, batches = run(policy)
    told = recorded_steps(record.steps, record.requests)
    for step in told:
        assert sorted(zip(step.num_computed.tolist(), step.num_scheduled.tolist(), strict=True)) == batches[step.index]
        assert step.num_tokens == sum(q for _, q in batches[step.index])
    assert len(told) > 0.9 * len(batches)
    assert {step.regime for step in told} >= {"decode", "prefill"}


def test_evictions_leave_steps_out_and_none_wrong() -> None:
    spec = "synthetic:rate=inf,n=40,prompt=uniform(100,400),output=uniform(20,90),seed=5"
    record, batches = run("vllm_v1", 150, spec)
    assert sum(r.num_preemptions for r in record.requests) > 3
    told = recorded_steps(record.steps, record.requests)
    for step in told:
        assert sorted(zip(step.num_computed.tolist(), step.num_scheduled.tolist(), strict=True)) == batches[step.index]
    assert 0.2 * len(batches) < len(told) < len(batches)


def test_prefix_hits_are_not_computed() -> None:
    spec = "synthetic:rate=inf,n=12,prompt=200,output=4,prefix=400,seed=1"
    record, batches = run("vllm_v1", workload=spec, max_num_batched_tokens=700)
    assert any(r.num_cached_tokens for r in record.requests)
    for step in recorded_steps(record.steps, record.requests):
        assert sorted(zip(step.num_computed.tolist(), step.num_scheduled.tolist(), strict=True)) == batches[step.index]


def test_a_step_lasts_until_the_next_where_somebody_is_left() -> None:
    record, _ = run("vllm_v1", workload="synthetic:rate=inf,n=1,prompt=100,output=3,seed=1")
    steps = list(record.steps)
    first, second, third = steps
    second.start_ns += 1000  # the engine took a microsecond between them
    told = recorded_steps(steps, record.requests)
    assert [round(step.time_s * 1e9) for step in told] == [
        second.start_ns - first.start_ns,
        third.start_ns - second.start_ns,
        third.end_ns - third.start_ns,
    ]
    assert [step.regime for step in told] == ["prefill", "decode", "decode"]
    assert [step.num_sampled for step in told] == [1, 1, 1]


def test_several_cut_prompts_in_one_step_leave_it_out() -> None:
    record, _ = run("vllm_v1", workload="synthetic:rate=inf,n=2,prompt=100,output=3,seed=1")
    whole = recorded_steps(record.steps, record.requests)
    assert len(whole) == len(record.steps)
    for request in record.requests:  # as if both had got their first token one step later
        del request.token_times_ns[0]
    told = recorded_steps(record.steps, record.requests)
    assert not [step for step in told if step.index == 0]


def test_what_is_computed_again_is_not_another_prompts_share() -> None:
    record, _ = run("vllm_v1", workload="synthetic:rate=inf,n=2,prompt=100,output=5,seed=1")
    evicted, cut = record.requests
    steps = list(record.steps)[:4]
    # The first is evicted after its first token, and computed again in the last step, beside a part of the second.
    for i, (step, (prefill, decodes)) in enumerate(zip(steps, ((110, 0), (20, 0), (20, 0), (121, 0)), strict=True)):
        step.start_ns, step.end_ns, step.num_prefill_tokens, step.num_decodes = 100 * i, 100 * (i + 1), prefill, decodes
    evicted.first_scheduled_ns, evicted.num_preemptions, evicted.finish_ns = 0, 1, None
    evicted.token_times_ns = array("q", [100, 400])
    cut.first_scheduled_ns, cut.finish_ns, cut.num_prompt_tokens = 0, None, 500
    cut.token_times_ns = array("q")
    assert [step.index for step in recorded_steps(steps, [evicted, cut])] == [steps[0].index]
