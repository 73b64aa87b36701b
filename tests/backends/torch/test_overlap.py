"""Overlap on a real model: the tokens of a run without, with draws, stops, evictions, an abort, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backends.torch.test_equality import prompts
from batchwright import CompletionOutput, Engine, EngineConfig, Request, RequestOutput, SamplingParams, hookimpl

Make = Callable[..., Any]


class Evictions:
    """Counts them."""

    name = "evictions"
    count = 0

    @hookimpl
    def request_preempted(self) -> None:
        self.count += 1


def _run(folder: str, policy: str, *, overlap: bool, stops: dict[str, int]) -> dict[str, RequestOutput]:
    """The last output of each request."""
    config = EngineConfig(
        policy=policy,
        backend=f"cpu:{folder}",
        block_size=4,
        num_blocks=14,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        overlap=overlap,
        backend_options={"check_logits": False},
    )
    last: dict[str, RequestOutput] = {}
    evictions = Evictions()
    with Engine(config, plugins=[evictions]) as engine:
        assert engine.effective.values["overlap"] == overlap
        for i, prompt in enumerate(prompts((5, 9, 14, 3, 20, 11, 7, 8), seed=4)):
            name = str(i)
            params = SamplingParams(
                max_tokens=8 + 2 * i,
                temperature=0.0 if i % 2 else 0.8,
                seed=i,
                stop_token_ids=[stops[name]] if name in stops else [],
                logprobs=2 if i in (1, 4) else None,
                ignore_eos=True,
            )
            engine.add_request(Request(name, prompt, params))
        for call in range(200):
            if call == 9:
                engine.abort("7")
            for output in engine.step():
                last[output.request_id] = output
            if not engine.has_unfinished():
                break
        assert engine.scheduler.blocks.num_free == 14
    assert evictions.count
    return last


@pytest.mark.parametrize("policy", ["prefill_first", "stall_free", "vllm_v1"])
def test_tokens_are_those_without(policy: str, folders: Make) -> None:
    whole = _run(folders("llama"), policy, overlap=False, stops={})
    stops = {name: whole[name].outputs[0].token_ids[4] for name in ("2", "5")}
    for some in ({}, stops):
        plain, ahead = (_run(folders("llama"), policy, overlap=overlap, stops=some) for overlap in (False, True))
        assert set(ahead) == set(plain)
        for name in sorted(set(plain) - {"7"}):
            one, other = ahead[name].outputs[0], plain[name].outputs[0]
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason), name
            assert one.finish_reason == ("stop" if name in some else "length")
            assert _tops(one) == _tops(other)


def _tops(completion: CompletionOutput) -> list[Any] | None:
    """Ranks and likeliest tokens; values differ in their last bits with the batch."""
    if completion.logprobs is None:
        return None
    return [(t.rank, [i for i, _ in t.top], pytest.approx(t.logprob, abs=1e-4)) for t in completion.logprobs]
