"""``batchwright-1``: what ``DecisionRecorder`` writes for any policy and backend; known by ``format``.

One run a line, a JSON object of

- ``format``: ``"batchwright-1"``; ``id``: a name;
- ``config``: pool, limits, prefix cache, EOS, seed and ``on_policy_error``; ``policy``: name and parameters;
- ``requests``: ids, token ids, what was sampled, and all that policies may see of them;
- ``events``: what happened from outside, in order: ``[step, "before" or "during", kind, value]``. ``before`` is before
  that step was scheduled, ``during`` between that and its results; kinds are those of
  :class:`~batchwright.replay.case.Event`;
- ``clock``: ``[start, end]`` of each step in nanoseconds; ``predictions``: what ``step.predict_s`` answered, in order;
- ``steps``: what was decided. ``[id, tokens, tokens computed before]`` in batch order, ids in order of eviction, of
  finishing and of the queues. A step in which the policy broke a rule and the run went on has ``raised`` and the
  victims; one that failed in the backend and was retried has no ``scheduled``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from batchwright.limits import Limits
from batchwright.prefix_cache import PrefixCache
from batchwright.replay.case import Case, CaseRequest, Event, Fields
from batchwright.replay.outcome import Outcome
from batchwright.replay.schema import Count, Ids, Line, Positive, Strict, Tokens
from batchwright.replay.settings import Settings
from batchwright.request import SLO, Request
from batchwright.sampling_params import SamplingParams

FORMAT = "batchwright-1"
Name = Annotated[str, Field(min_length=1)]


class _PrefixCache(Strict):
    enabled: bool
    visible: Literal["computed", "scheduled"]
    reuse: Literal["oldest_freed", "uncached_first"]
    duplicates: Literal["newest", "oldest"]


class _Limits(Strict):
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    max_num_residents: Positive | None
    max_model_len: Positive | None


class _Config(Strict):
    num_blocks: Positive
    block_size: Positive
    limits: _Limits
    prefix_cache: _PrefixCache
    eos_token_ids: Ids
    vocab_size: Positive | None
    seed: Count
    on_policy_error: Literal["raise", "fallback"]
    fallback_policy: dict[str, Any] | None = None


class _SLO(Strict):
    ttft_s: float | None = None
    tpot_s: float | None = None


class _Request(Strict):
    id: Name
    prompt: Tokens
    max_tokens: Positive
    outputs: Ids
    num_output_tokens: Positive | None = None
    stopped_at: Positive | None = None
    ignore_eos: bool = False
    stop_token_ids: Ids = Field(default_factory=list)
    arrival_ns: Count = 0
    priority: int = 0
    client_id: str | None = None
    weight: float = 1.0
    deadline_s: float | None = None
    slo: _SLO | None = None
    predicted_output_tokens: Count | None = None
    session_id: str | None = None
    program_id: str | None = None
    extra: dict[str, Any] | None = None


_OWN = frozenset({"id", "prompt", "max_tokens", "outputs", "num_output_tokens", "stopped_at"})
_SAMPLING = frozenset({"ignore_eos", "stop_token_ids"})
_FOR_POLICIES = [name for name in _Request.model_fields if name not in _OWN | _SAMPLING]


class _Step(Strict):
    step: Count
    now: Count
    raised: Literal[True] | None = None
    scheduled: list[tuple[Name, Positive, Count]] | None = None
    preempted: list[Name]
    finished: list[Name] | None = None
    free_blocks: Count | None = None
    waiting: list[Name] | None = None
    prefilling: list[Name] | None = None
    decodes: list[Name] | None = None


_Kind = Literal["add", "refuse", "abort", "error", "swap", "failed", "fail", "retry"]


class _Run(Strict):
    format: Literal["batchwright-1"]
    id: str
    config: _Config
    policy: dict[str, Any]
    requests: list[_Request]
    events: list[tuple[Count, Literal["before", "during"], _Kind, str | dict[str, Any] | None]]
    clock: list[tuple[Count, Count]]
    predictions: list[float | None] | None = None
    steps: list[_Step]


def knows(data: dict[str, Any]) -> bool:
    """Whether a line is of this format, or of a later version of it."""
    return str(data.get("format", "")).startswith("batchwright-")


def read(line: Line) -> Case:
    """The case on a line."""
    if line.data["format"] != FORMAT:
        raise line.error(f"format {line.data['format']!r} is not known; this version reads {FORMAT!r}")
    run = line.parse(_Run)
    config = run.config
    line.check_ids([r.id for r in run.requests])
    if len(run.clock) != len(run.steps):
        raise line.error(f"clock has {len(run.clock)} entries for {len(run.steps)} steps")
    requests = {r.id: _read_request(r) for r in run.requests}
    for place, (_, _, kind, value) in enumerate(run.events):
        if kind in ("add", "refuse", "abort", "error") and value not in requests:
            raise line.error(f"events.{place}: there is no request {value!r}")
    return Case(
        name=run.id,
        line=line.number,
        settings=Settings(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            limits=Limits(**config.limits.model_dump()),
            prefix_cache=PrefixCache(**config.prefix_cache.model_dump()),
            eos_token_ids=tuple(config.eos_token_ids),
            vocab_size=config.vocab_size,
            seed=config.seed,
            on_policy_error=config.on_policy_error,
            fallback_policy=config.fallback_policy,
        ),
        requests=requests,
        events=[Event(step, kind, value, during=when == "during") for step, when, kind, value in run.events],
        steps=line.data["steps"],
        describe=describe,
        clock=run.clock,
        policy=run.policy,
        predictions=run.predictions,
    )


def _read_request(r: _Request) -> CaseRequest:
    fields = {name: getattr(r, name) for name in _FOR_POLICIES}
    if r.slo is not None:
        fields["slo"] = SLO(**r.slo.model_dump())
    return CaseRequest(
        request_id=r.id,
        prompt_token_ids=r.prompt,
        sampling_params=SamplingParams(
            max_tokens=r.max_tokens, ignore_eos=r.ignore_eos, stop_token_ids=r.stop_token_ids
        ),
        outputs=r.outputs,
        num_output_tokens=r.num_output_tokens,
        stopped_at=r.stopped_at,
        fields=fields,
    )


def describe(outcome: Outcome) -> Fields:
    """The fields of this format."""
    fields: dict[str, Any] = {"step": outcome.index, "now": outcome.now}
    if outcome.is_idle:
        return {"idle": True}
    if outcome.raised:
        return {**fields, "raised": True, "preempted": list(outcome.preempted)}
    if not outcome.retried:
        fields["scheduled"] = [list(row) for row in outcome.scheduled]
    return {
        **fields,
        "preempted": list(outcome.preempted),
        "finished": list(outcome.finished),
        "free_blocks": outcome.free_blocks,
        "waiting": list(outcome.waiting),
        "prefilling": list(outcome.prefilling),
        "decodes": list(outcome.decodes),
    }


def write_config(settings: Settings) -> dict[str, Any]:
    """``config`` as plain data."""
    named = {} if settings.fallback_policy is None else {"fallback_policy": settings.fallback_policy}
    return {
        "num_blocks": settings.num_blocks,
        "block_size": settings.block_size,
        "limits": asdict(settings.limits),
        "prefix_cache": asdict(settings.prefix_cache),
        "eos_token_ids": list(settings.eos_token_ids),
        "vocab_size": settings.vocab_size,
        "seed": settings.seed,
        "on_policy_error": settings.on_policy_error,
        **named,
    }


def write_request(request: Request, num_output_tokens: int | None, stopped_at: int | None) -> dict[str, Any]:
    """A request as plain data; what has its default is left out."""
    params = request.sampling_params
    data: dict[str, Any] = {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": params.max_tokens,
        "outputs": list(request.output_token_ids),
    }
    optional: dict[str, Any] = {
        "num_output_tokens": num_output_tokens,
        "stopped_at": stopped_at,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids),
        **{name: getattr(request, name) for name in _FOR_POLICIES},
    }
    optional["slo"] = asdict(request.slo) if request.slo is not None else None
    optional["extra"] = dict(request.extra) or None
    defaults = {name: _Request.model_fields[name].get_default(call_default_factory=True) for name in optional}
    return {**data, **{name: value for name, value in optional.items() if value != defaults[name]}}


def dumps(data: Mapping[str, Any] | list[Any]) -> str:
    """Compact JSON; floats survive exactly."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
