"""slo_chunk: prompts are cut to what keeps the decodes inside their SLO."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from batchwright import Engine, EngineConfig, PluginError, Policy, Request, SamplingParams, Scheduler, hookimpl
from batchwright.request import SLO
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.slo_chunk import SloChunk
from batchwright_policies.vllm_v1 import VllmV1
from policies.defining import Make, defines
from policies.drive import PROMPT_TOKEN_S, STEP_S, Job, make_scheduler, percentile, run
from toolbox import prompt_of


class Gaps:
    """Seconds between two tokens of a request, and how long the engine's steps took."""

    name = "gaps"

    def __init__(self) -> None:
        self.last: dict[Request, int] = {}
        self.gaps: list[float] = []
        self.served_meanwhile: set[str] = set()  # long prompts done while others decode

    @hookimpl
    def step_finished(self, step: Any) -> None:
        if step.num_decodes > 12:
            self.served_meanwhile |= {r.request_id for r in step.sampled if r.request_id.startswith("long")}
        for request in step.sampled:
            if request in self.last:
                self.gaps.append((step.end - self.last[request]) / 1e9)
            self.last[request] = step.end


def on_h100(policy: Policy, prompts: int = 12, prompt: int = 6000) -> Gaps:
    """Gaps of short requests on a simulated H100, while long prompts come in."""
    gaps = Gaps()
    config = EngineConfig(backend="sim:llama-3.1-8b@h100", max_num_batched_tokens=8192, max_num_seqs=64)
    with Engine(config, policy=policy, plugins=[gaps]) as engine:
        for k in range(24):
            engine.add_request(request(f"chat{k}", 64, 120))
        for k in range(prompts):
            for _ in range(4):
                engine.advance()
            engine.add_request(request(f"long{k}", prompt, 4))
        while engine.has_unfinished():
            engine.advance()
    return gaps


def request(name: str, prompt: int, output: int, **fields: Any) -> Request:
    return Request(name, prompt_of(name, prompt), SamplingParams(max_tokens=output, ignore_eos=True), **fields)


@defines(SloChunk)
def test_slo_chunk_keeps_p99_of_the_gaps_under_its_target(make: Make):
    seen = on_h100(make(tbt_s=0.04))
    assert percentile(seen.gaps, 0.99) <= 0.04
    assert len(seen.served_meanwhile) >= 5  # and prompts do not wait for that


def test_where_vllm_v1_breaks_it():
    assert percentile(on_h100(VllmV1()).gaps, 0.99) > 2 * 0.04


def test_the_chunk_is_the_largest_that_fits():
    jobs = [Job("chat", 4, 60), Job("long", 2000, 2, 0.015)]
    outcome = run(SloChunk(tbt_s=0.03), jobs, T=4096)
    chunks = [dict(batch)["long"] for batch in outcome.batches if "long" in dict(batch) and "chat" in dict(batch)]
    most = int((0.03 - STEP_S - 0.00005) / PROMPT_TOKEN_S)
    assert chunks[:-2] == [most // 16 * 16] * (len(chunks) - 2) and len(chunks) >= 4
    assert max(outcome.gaps()) <= 0.03 + 1e-9


def test_it_heeds_the_tightest_slo_of_those_that_decode():
    jobs = [Job("chat", 4, 60, fields={"slo": SLO(tpot_s=0.02)}), Job("lax", 4, 60, fields={"slo": SLO(tpot_s=0.5)})]
    jobs += [Job("none", 4, 60), Job("long", 2000, 2, 0.015)]
    outcome = run(SloChunk(tbt_s=0.04), jobs, T=4096)
    assert 0.019 < max(b - a for a, b in pairwise(outcome.token_times["chat"])) <= 0.02 + 1e-9


def test_l6_a_lone_prompt_gets_the_whole_budget():
    outcome = run(SloChunk(tbt_s=0.02), [Job("long", 16_000, 2)], T=16_384, P=2000)
    assert outcome.batches[0] == [("long", 16_000)]
    two = run(SloChunk(tbt_s=0.02), [Job("a", 9000, 2), Job("b", 9000, 2)], T=16_384, P=2000)
    assert two.batches[0] == [("a", 9000), ("b", 7384)]  # nobody decodes, so nothing is to be kept


def test_prompts_go_on_where_decodes_alone_take_too_long():
    jobs = [Job("chat", 4, 60), Job("long", 90, 2, 0.015), Job("next", 90, 2, 0.015)]
    outcome = run(SloChunk(tbt_s=0.005), jobs, T=4096)
    assert [dict(b) for b in outcome.batches[2:4]] == [{"chat": 1, "long": 16}] * 2
    assert outcome.first_token("long") < 0.1 and outcome.first_token("next") < 0.2


def test_prompts_wait_where_there_is_no_room_for_a_tile():
    # 0.0102 s leave room for 3 tokens beside the decode.
    outcome = run(SloChunk(tbt_s=STEP_S + 0.0002), [Job("chat", 4, 9), Job("long", 90, 2, 0.015)], T=4096)
    assert all(batch == [("chat", 1)] for batch in outcome.batches[1:9])
    assert outcome.batches[9] == [("long", 90)]


def test_it_asks_the_backend_a_bounded_number_of_times():
    calls = 0

    def predict(batch: Any) -> float:
        nonlocal calls
        calls += 1
        return STEP_S + PROMPT_TOKEN_S * len(batch.token_ids)

    scheduler = make_scheduler(SloChunk(tbt_s=0.03), predict_s=predict, T=8192, S=64)
    for k in range(10):
        scheduler.add(request(f"chat{k}", 4, 9))
    scheduler.update(scheduler.schedule(), [7] * 10)
    for k in range(40):
        scheduler.add(request(f"long{k}", 300, 9))
    scheduler.schedule()
    assert calls <= 12  # one prompt that fits, one that is cut, by bisection; then nobody else is looked at


def test_it_is_refused_where_nothing_predicts():
    with pytest.raises(PluginError, match="uses_predict"):
        Scheduler(SloChunk(), num_blocks=4, block_size=4)
    scheduler = Scheduler(PrefillFirst(), num_blocks=4, block_size=4)
    with pytest.raises(PluginError, match="uses_predict"):
        scheduler.swap_policy(SloChunk())
