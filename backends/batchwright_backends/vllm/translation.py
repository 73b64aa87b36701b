"""A request of vLLM's as one of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.utils import check_sequence_repetition  # pyright: ignore[reportMissingImports]

from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright_backends.vllm.stamps import Stamps
from batchwright_backends.vllm.trusted import check_said, fields_of

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]


def translate(request: VllmRequest, now_ns: int, *, trusted: bool, stamps: Stamps | None = None) -> Request:
    """Our request.

    Only what scheduling needs goes over: vLLM's workers sample, by vLLM's own parameters.

    Args:
        request: vLLM's.
        now_ns: when it arrives, in nanoseconds of the scheduler's clock.
        trusted: whether its ``vllm_xargs`` may say what policies go by.
        stamps: with which they are stamped by who may; None: nobody stamps.

    Raises:
        InvalidRequestError: a field is unknown, of another type or out of its range.
    """
    params = request.sampling_params
    stops = set(params.stop_token_ids or ())
    if params.eos_token_id is not None:
        stops.add(params.eos_token_id)
    said = _said(request, now_ns, fields_of(params.extra_args or {}, stamps, trusted=trusted))
    # Some of vLLM's ways in take a priority of a body past the middleware.
    priority = request.priority if stamps is None or trusted else 0
    return Request(
        request.request_id,
        request.prompt_token_ids,
        SamplingParams(max_tokens=params.max_tokens, stop_token_ids=sorted(stops), ignore_eos=True),
        arrival_ns=now_ns,
        **{"priority": priority, "session_id": request.session_id, **said},
    )


def hidden_length(request: VllmRequest) -> int | None:
    """How many tokens a request really puts out, where a trace is replayed and that is less than it asked for.

    Whoever replays lowers ``max_tokens`` of vLLM's request, at which vLLM ends it, and leaves its sampling parameters.
    """
    asked_for = request.sampling_params.max_tokens
    return request.max_tokens if asked_for is not None and request.max_tokens < asked_for else None


def repetition_check(request: VllmRequest) -> Callable[[int], bool] | None:
    """What looks for repetitions in a request's output, where it wants that; called with each token."""
    params = request.sampling_params
    detection = params.repetition_detection
    if detection is None:
        return None
    tokens: list[int] = []

    def check(token: int) -> bool:
        tokens.append(token)
        return len(tokens) >= params.min_tokens and bool(check_sequence_repetition(tokens, detection))

    return check


def _said(request: VllmRequest, now_ns: int, said: dict[str, Any]) -> dict[str, Any]:
    said = check_said(request.request_id, said)
    if "slo_class" in said:
        said["extra"] = {"slo_class": said.pop("slo_class")}
    if "deadline_s" in said:  # from its arrival; ours count from the start of the clock
        said["deadline_s"] += now_ns / 1e9
    return said
