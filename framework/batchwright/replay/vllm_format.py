"""Cases recorded from vLLM's V1 scheduler: known by ``policy`` and ``long_prefill_token_threshold`` in their config.

One workload a line. Without ``prompt`` prefix caching was off, token ids are made up, and rows of ``scheduled`` are
``[id, tokens]``; with it, rows end with the tokens already in the KV cache. ``preempted`` and ``finished`` are sorted.
``max_num_seqs`` bounds the residents as well.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from batchwright.limits import Limits
from batchwright.prefix_cache import PrefixCache
from batchwright.replay.case import Case, CaseRequest, Event, Fields
from batchwright.replay.outcome import Outcome
from batchwright.replay.schema import Count, Ids, Line, Positive, Strict, Tokens
from batchwright.replay.settings import Settings
from batchwright.sampling_params import SamplingParams


class _Config(Strict):
    policy: Literal["fcfs", "priority"]
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    block_size: Positive
    num_blocks: Positive
    long_prefill_token_threshold: Count


class _Request(Strict):
    id: Count
    arrival_step: Count
    prompt_len: Positive
    max_tokens: Positive
    priority: int
    prompt: Tokens | None = None
    outputs: Ids = Field(default_factory=list)


class _Step(Strict):
    step: Count
    idle: Literal[True] | None = None
    scheduled: list[tuple[Count, Positive] | tuple[Count, Positive, Count]] | None = None
    preempted: Ids | None = None
    finished: Ids | None = None
    free_blocks: Count | None = None
    running: Ids | None = None
    num_waiting: Count | None = None


class _Workload(Strict):
    id: str
    config: _Config
    requests: list[_Request]
    steps: list[_Step]


def knows(data: dict[str, Any]) -> bool:
    """Whether a line is of this format."""
    config = data.get("config")
    return isinstance(config, dict) and {"policy", "long_prefill_token_threshold"} <= config.keys()


def read(line: Line) -> Case:
    """The case on a line."""
    workload = line.parse(_Workload)
    config = workload.config
    line.check_ids([r.id for r in workload.requests])
    has_tokens = any(r.prompt is not None for r in workload.requests)
    for place, r in enumerate(workload.requests):
        if has_tokens and (r.prompt is None or len(r.prompt) != r.prompt_len):
            raise line.error(f"requests.{place}: its prompt must have prompt_len = {r.prompt_len} token ids")
    return Case(
        name=workload.id,
        line=line.number,
        settings=Settings(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            limits=Limits(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_residents=config.max_num_seqs,
            ),
            prefix_cache=PrefixCache(
                enabled=has_tokens, visible="scheduled", reuse="uncached_first", duplicates="oldest"
            ),
        ),
        requests={str(r.id): _request(r) for r in workload.requests},
        events=[
            Event(r.arrival_step, "add", str(r.id)) for r in sorted(workload.requests, key=lambda r: r.arrival_step)
        ],
        steps=line.data["steps"],
        describe=_describe_with_computed if has_tokens else _describe,
        params={
            "scheduling_policy": config.policy,
            "long_prefill_token_threshold": config.long_prefill_token_threshold or None,
        },
    )


def _request(r: _Request) -> CaseRequest:
    return CaseRequest(
        request_id=str(r.id),
        prompt_token_ids=r.prompt if r.prompt is not None else [r.id] * r.prompt_len,  # no two share a prefix
        sampling_params=SamplingParams(max_tokens=r.max_tokens, ignore_eos=True),
        outputs=r.outputs,
        fields={"priority": r.priority},
    )


def _describe(outcome: Outcome) -> Fields:
    return _fields(outcome, [[int(i), tokens] for i, tokens, _ in outcome.scheduled])


def _describe_with_computed(outcome: Outcome) -> Fields:
    return _fields(outcome, [[int(i), tokens, computed] for i, tokens, computed in outcome.scheduled])


def _fields(outcome: Outcome, scheduled: list[list[int]]) -> Fields:
    if outcome.is_idle:
        return {"step": outcome.position, "idle": True}
    return {
        "step": outcome.position,
        "scheduled": scheduled,
        "preempted": sorted(int(i) for i in outcome.preempted),
        "finished": sorted(int(i) for i in outcome.finished),
        "free_blocks": outcome.free_blocks,
        "running": [int(i) for i in outcome.running],
        "num_waiting": len(outcome.waiting),
    }
