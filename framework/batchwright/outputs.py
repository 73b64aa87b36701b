"""What a caller gets back of a request."""

from __future__ import annotations

from dataclasses import dataclass

from batchwright.backend import IncrementalDecoder
from batchwright.logprobs import TokenLogprobs
from batchwright.request import Request


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """The completion of a prompt, in the shape that vLLM's users know.

    Attributes:
        index: always 0: one completion a request.
        text: without special tokens and stop string; empty where the backend has no tokenizer.
        token_ids: output tokens, an end-of-sequence token included.
        finish_reason: None while it runs; ``stop``, ``length``, ``trace``, ``abort`` or ``error``.
        logprobs: log-probabilities of each of ``token_ids``; None where the request wants none.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the output tokens' log-probabilities; None where the request wants none."""
        return sum(t.logprob for t in self.logprobs) if self.logprobs is not None else None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request after one step, or at its end.

    Attributes:
        request_id: of the request.
        prompt: as text, where it was given as text.
        prompt_token_ids: the prompt.
        outputs: one :class:`CompletionOutput`, with everything so far.
        new_text: text that came with this step.
        new_token_ids: tokens that came with this step.
        finished: whether nothing follows.
        error: what went wrong, where the finish reason is ``error``.
        num_cached_tokens: prompt tokens that the prefix cache held at its last admission.
        new_logprobs: log-probabilities of each of ``new_token_ids``; None where the request wants none.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    new_text: str
    new_token_ids: list[int]
    finished: bool
    error: str | None
    num_cached_tokens: int
    new_logprobs: list[TokenLogprobs] | None = None


class OutputText:
    """The text of one request as it grows, and the search for its stop strings.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    __slots__ = ("_decoder", "_held", "_longest", "_stop", "_told", "stopped", "text")

    def __init__(self, decoder: IncrementalDecoder, stop: tuple[str, ...]) -> None:
        self._decoder = decoder
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._told = 0
        self.text = ""  # released text
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> bool:
        """Take a sampled token; True when a stop string is complete."""
        self._take(self._decoder.push((token,)))
        return self.stopped

    def finish(self) -> None:
        """The request ended: release what was held back."""
        if not self.stopped:
            self._take(self._decoder.finish())
        if not self.stopped:
            self.text += self._held
        self._held = ""

    def new(self) -> str:
        """Text released since the last call."""
        told, self._told = self._told, len(self.text)
        return self.text[told:]

    def _take(self, piece: str) -> None:
        if not piece or self.stopped:
            return
        pending = self._held + piece
        found = [(place, s) for s in self._stop if (place := pending.find(s)) >= 0]
        if found:
            self.text += pending[: min(found)[0]]
            self._held = ""
            self.stopped = True
            return
        keep = self._overlap(pending)
        self.text += pending[: len(pending) - keep]
        self._held = pending[len(pending) - keep :]

    def _overlap(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for n in range(min(len(text), self._longest - 1), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0


def make_output(
    request: Request, prompt: str | None, text: OutputText | None, num_new: int, *, told: bool = True
) -> RequestOutput:
    """What a request's caller gets after a step in which it got ``num_new`` tokens.

    Args:
        request: of the caller.
        prompt: as text, where it was given as text.
        text: of the output, where there is any.
        num_new: tokens that are new to the caller.
        told: the new text counts as told; False: it will be told again.
    """
    tokens = request.output_token_ids[:]
    if text is not None and request.is_finished:
        try:
            text.finish()
        except Exception as error:  # what was decoded so far is given
            request.error = request.error or f"its text cannot be made: {type(error).__name__}: {error}"
    logprobs = request._logprobs[:] if request._logprobs is not None else None
    return RequestOutput(
        request_id=request.request_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_token_ids[:],
        outputs=[CompletionOutput(0, text.text if text is not None else "", tokens, request.finish_reason, logprobs)],
        new_text=text.new() if told and text is not None else "",
        new_token_ids=tokens[len(tokens) - num_new :],
        finished=request.is_finished,
        error=request.error,
        num_cached_tokens=request.num_cached,
        new_logprobs=logprobs[len(tokens) - num_new :] if logprobs is not None else None,
    )
