"""A case: a workload and the decisions that were recorded on it, whatever the format it was read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from batchwright.replay.outcome import Outcome
from batchwright.replay.settings import Settings
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams

Fields = Mapping[str, Any]
"""Fields of one step as plain data, named as in the file."""


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """A request to submit.

    Attributes:
        request_id: its id in the replay.
        prompt_token_ids: its prompt.
        sampling_params: ``max_tokens`` and what ends it.
        outputs: the token it samples at each output position; 0 beyond the end.
        num_output_tokens: its hidden real length, or None.
        stopped_at: output tokens at which something outside the scheduler (a stop string) ended it, or None.
        fields: further keyword arguments of :class:`~batchwright.Request`.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    outputs: Sequence[int] = ()
    num_output_tokens: int | None = None
    stopped_at: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Request:
        """A fresh request."""
        return Request(self.request_id, self.prompt_token_ids, self.sampling_params, **self.fields)

    def stop_check(self, request: Request) -> Callable[[int], bool] | None:
        """What ends it in the place of what did when it was recorded; None where it ended by itself."""
        if self.stopped_at is None:
            return None
        end = request.num_prompt_tokens + self.stopped_at
        return lambda _token: request.num_tokens >= end

    def token(self, position: int) -> int:
        """What it samples at an output position."""
        return self.outputs[position] if position < len(self.outputs) else 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a scheduler from outside.

    Attributes:
        step: index of the recorded step that it belongs to.
        kind: ``add`` a request, ``refuse`` (it is added, and the policy refuses it), ``abort`` it, ``error`` (it is
            aborted because of an error), ``swap`` the policy, ``failed`` (rows of this step), ``fail`` or ``retry``
            (the backend failed in this step).
        value: the request's id; the policy as a spec; or request id to cause.
        during: after the step was scheduled and before its results came; otherwise before it was scheduled.
    """

    step: int
    kind: Literal["add", "refuse", "abort", "error", "swap", "failed", "fail", "retry"]
    value: Any
    during: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and what was decided on it.

    Attributes:
        name: as in the file.
        line: where in the file, from 1.
        settings: of the scheduler.
        requests: by id.
        events: in the order in which they happened.
        steps: the recorded steps; an idle one (nobody is there) is a step too where the format records it.
        clock: start and end of each step in nanoseconds; empty: step k runs from k to k + 1.
        describe: the same fields of an executed step.
        policy: the recorded policy as a spec, or None.
        params: what the file says of the policy's parameters: used where the policy has them, and the caller says
            nothing.
        predictions: what ``step.predict_s`` answered, in the order of the calls; None: there was no estimate.
    """

    name: str
    line: int
    settings: Settings
    requests: Mapping[str, CaseRequest]
    events: Sequence[Event]
    steps: Sequence[Fields]
    describe: Callable[[Outcome], Fields]
    clock: Sequence[tuple[int, int]] = ()
    policy: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    predictions: Sequence[float | None] | None = None
