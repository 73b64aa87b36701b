"""Cases recorded from nano-vLLM: known by ``eos`` in their config.

One workload a line: ``config``, ``requests`` with the token sampled at each output position, and ``steps``. This
scheduler keeps a cut prompt at the head of ``waiting`` until its last chunk is scheduled, so its ``waiting`` is our
prefilling residents and then our waiting queue, and its ``running`` our decodes.
"""

from __future__ import annotations

from typing import Any, Literal

from batchwright.limits import Limits
from batchwright.prefix_cache import PrefixCache
from batchwright.replay.case import Case, CaseRequest, Event, Fields
from batchwright.replay.outcome import Outcome
from batchwright.replay.schema import Count, Ids, Line, Positive, Strict, Tokens
from batchwright.replay.settings import Settings
from batchwright.sampling_params import SamplingParams


class _Config(Strict):
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    block_size: Positive
    num_blocks: Positive
    eos: int


class _Request(Strict):
    id: Count
    arrival_step: Count
    prompt: Tokens
    max_tokens: Positive
    ignore_eos: bool
    outputs: Ids


class _Step(Strict):
    step: Count
    phase: Literal["idle", "prefill", "decode"]
    scheduled: list[tuple[Count, Positive, Count]] | None = None
    preempted: Ids | None = None
    finished: Ids | None = None
    free_blocks: Count | None = None
    waiting: Ids | None = None
    running: Ids | None = None


class _Workload(Strict):
    id: str
    config: _Config
    requests: list[_Request]
    steps: list[_Step]


def knows(data: dict[str, Any]) -> bool:
    """Whether a line is of this format."""
    return isinstance(data.get("config"), dict) and "eos" in data["config"]


def read(line: Line) -> Case:
    """The case on a line."""
    workload = line.parse(_Workload)
    config = workload.config
    requests = {
        str(r.id): CaseRequest(
            request_id=str(r.id),
            prompt_token_ids=r.prompt,
            sampling_params=SamplingParams(max_tokens=r.max_tokens, ignore_eos=r.ignore_eos),
            outputs=r.outputs,
        )
        for r in workload.requests
    }
    line.check_ids([r.id for r in workload.requests])
    return Case(
        name=workload.id,
        line=line.number,
        settings=Settings(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            limits=Limits(max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens),
            prefix_cache=PrefixCache(),
            eos_token_ids=(config.eos,) if config.eos >= 0 else (),
        ),
        requests=requests,
        events=[
            Event(r.arrival_step, "add", str(r.id)) for r in sorted(workload.requests, key=lambda r: r.arrival_step)
        ],
        steps=line.data["steps"],
        describe=describe,
    )


def describe(outcome: Outcome) -> Fields:
    """The fields of this format."""
    if outcome.is_idle:
        return {"step": outcome.position, "phase": "idle"}
    return {
        "step": outcome.position,
        "phase": "prefill" if outcome.is_prefill else "decode",
        "scheduled": [[int(i), tokens, computed] for i, tokens, computed in outcome.scheduled],
        "preempted": [int(i) for i in outcome.preempted],
        "finished": [int(i) for i in outcome.finished],
        "free_blocks": outcome.free_blocks,
        "waiting": [int(i) for i in (*outcome.prefilling, *outcome.waiting)],
        "running": [int(i) for i in outcome.decodes],
    }
