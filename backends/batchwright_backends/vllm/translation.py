"""A request of vLLM's as one of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.utils import check_sequence_repetition  # pyright: ignore[reportMissingImports]

from batchwright.errors import InvalidRequestError, did_you_mean
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

TRUSTED = ("client_id", "weight", "deadline_s", "predicted_output_tokens", "session_id", "program_id")
"""What a request may say for policies in its ``vllm_xargs``, where requests are trusted."""

_PREFIX = "batchwright_"


def translate(request: VllmRequest, now_ns: int, *, trusted: bool) -> Request:
    """Our request.

    Only what scheduling needs goes over: vLLM's workers sample, by vLLM's own parameters.

    Args:
        request: vLLM's.
        now_ns: when it arrives, in nanoseconds of the scheduler's clock.
        trusted: whether its ``vllm_xargs`` may say what policies go by.

    Raises:
        InvalidRequestError: a field is out of its range.
    """
    params = request.sampling_params
    stops = set(params.stop_token_ids or ())
    if params.eos_token_id is not None:
        stops.add(params.eos_token_id)
    said = _said(request, now_ns) if trusted else {}
    return Request(
        request.request_id,
        request.prompt_token_ids,
        SamplingParams(max_tokens=request.max_tokens, stop_token_ids=sorted(stops), ignore_eos=True),
        arrival_ns=now_ns,
        priority=request.priority,
        **{"session_id": request.session_id, **said},
    )


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


def _said(request: VllmRequest, now_ns: int) -> dict[str, Any]:
    extra = request.sampling_params.extra_args or {}
    said = {name[len(_PREFIX) :]: value for name, value in extra.items() if name.startswith(_PREFIX)}
    for name in said:
        if name not in TRUSTED:
            raise InvalidRequestError(
                f"request {request.request_id!r}: {_PREFIX}{name} is nothing that policies go by; "
                f"{did_you_mean(name, TRUSTED)}"
            )
    if "deadline_s" in said:  # from its arrival; ours count from the start of the clock
        said["deadline_s"] = now_ns / 1e9 + float(said["deadline_s"])
    return said
