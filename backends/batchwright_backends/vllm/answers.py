"""What vLLM's clients are told of a step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from batchwright.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.request import Request
    from batchwright.step import Step
    from batchwright_backends.vllm.seats import Seats

_STATUS = {"length": RequestStatus.FINISHED_LENGTH_CAPPED, "error": RequestStatus.FINISHED_ERROR}


class Answers:
    """Outputs for each client, until vLLM takes them.

    Args:
        seats: of the scheduler.
        cached_size: tokens of a block of the prefix cache; 0: there is none.
        include_finished_set: whether clients are also told ids of all that ended.
    """

    def __init__(self, seats: Seats, cached_size: int, *, include_finished_set: bool) -> None:
        self._seats = seats
        self._cached_size = cached_size
        self._outputs: dict[int, list[EngineCoreOutput]] = defaultdict(list)
        self._ended: dict[int, set[str]] | None = defaultdict(set) if include_finished_set else None
        self._refused: list[VllmRequest] = []

    @property
    def num_refused(self) -> int:
        """Requests that were refused and are not told yet."""
        return len(self._refused)

    def refuse(self, request: VllmRequest) -> None:
        """A request was not taken; its client is told with the next step."""
        request.status = RequestStatus.FINISHED_ERROR
        self._refused.append(request)

    def leave(self, request_id: str) -> VllmRequest:
        """A request ended; vLLM's."""
        theirs = self._seats.leave(request_id)
        if self._ended is not None:
            self._ended[theirs.client_index].add(request_id)
        return theirs

    @staticmethod
    def tokens_of(rows: Sequence[Request], output: ModelRunnerOutput) -> list[int]:
        """The sampled token of each of these rows.

        Raises:
            BackendError: a worker gave none, or several, for such a row.
        """
        sampled, index = output.sampled_token_ids, output.req_id_to_index
        try:
            return [token for request in rows for (token,) in (sampled[index[request.request_id]],)]
        except (KeyError, IndexError, ValueError) as error:
            raise BackendError(f"vLLM's workers did not give one token for each row that samples: {error!r}") from None

    def take(self, step: Step, rows: Sequence[Request], output: ModelRunnerOutput) -> None:
        """What a step brought.

        Args:
            step: as it ended.
            rows: those that sampled, in batch order.
            output: what the workers gave.
        """
        seats, index, logprobs, sampled = self._seats, output.req_id_to_index, output.logprobs, output.sampled_token_ids
        of_prompts, of_ids = output.prompt_logprobs_dict, output.prompt_token_id_logprobs_dict
        ended = set(step.finished)
        outputs = self._outputs
        for request in rows:
            name = request.request_id
            seat = seats.get(name)
            if seat is None or seat.request is not request:
                continue  # aborted while it ran, or it stopped in the step before
            theirs, place = seat.theirs, index[name]
            tokens = sampled[place]
            told: dict[str, Any] = {}
            if theirs.prefill_stats is not None:
                told["prefill_stats"] = theirs.take_prefill_stats()
                size = self._cached_size
                told["prefill_stats"].finalize(request.num_computed // size * size if size else 0)
            if theirs.events:
                told["events"] = theirs.take_events()
            if logprobs is not None and theirs.sampling_params.num_logprobs is not None:
                told["new_logprobs"] = logprobs.slice_request(place, 1)
            if of_prompts and name in of_prompts:
                told["new_prompt_logprobs_tensors"] = of_prompts[name]
            if of_ids and name in of_ids:
                told["prompt_token_id_logprobs"] = of_ids[name]
            if output.num_nans_in_logits and name in output.num_nans_in_logits:
                told["num_nans_in_logits"] = output.num_nans_in_logits[name]
            if theirs.trace_headers is not None:
                told["trace_headers"] = theirs.trace_headers
            if request in ended:
                self._end(request, theirs, tokens[0])
                told["finish_reason"] = theirs.get_finished_reason()
                told["stop_reason"] = theirs.stop_reason
            outputs[theirs.client_index].append(EngineCoreOutput(name, tokens, **told))

    def _end(self, request: Request, theirs: VllmRequest, token: int) -> None:
        self.leave(request.request_id)
        theirs.status = _STATUS.get(request.finish_reason or "", RequestStatus.FINISHED_STOPPED)
        if request.finish_reason != "stop" or token == theirs.sampling_params.eos_token_id:
            return
        if token in (theirs.sampling_params.stop_token_ids or ()):
            theirs.stop_reason = token
        else:
            theirs.status, theirs.stop_reason = RequestStatus.FINISHED_REPETITION, "repetition_detected"

    def outputs(self) -> dict[int, EngineCoreOutputs]:
        """All that is to be told, by client."""
        for request in self._refused:
            self._outputs[request.client_index].append(
                EngineCoreOutput(request.request_id, [], finish_reason=request.get_finished_reason())
            )
            if self._ended is not None:
                self._ended[request.client_index].add(request.request_id)
        self._refused.clear()
        told = {client: EngineCoreOutputs(outputs=outputs) for client, outputs in self._outputs.items()}
        self._outputs = defaultdict(list)
        if self._ended:
            for client, names in self._ended.items():
                told.setdefault(client, EngineCoreOutputs()).finished_requests = names
            self._ended = defaultdict(set)
        return told
