"""What an engine gives back of its requests: text as it comes, and outputs of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from batchwright.outputs import OutputText, RequestOutput, make_output

if TYPE_CHECKING:
    from batchwright.request import Request
    from batchwright.step import Step


class Answers:
    """Texts and prompts of unfinished requests, and whose last output is still to be given."""

    def __init__(self, fail: Callable[[Request, str], None]) -> None:
        """Takes what ends a request whose text cannot be made, and why."""
        self._fail = fail
        self._texts: dict[str, OutputText] = {}
        self._prompts: dict[str, str] = {}
        self._aborted: list[Request] = []  # in a step, by observers; their last output was not given
        self._untold: set[Request] = set()  # of those, who got a token that no output has told

    @property
    def any_aborted(self) -> bool:
        """Whether somebody was aborted within a step, and its last output is to be given with that of the step."""
        return bool(self._aborted)

    def take(self, request_id: str, text: OutputText | None, prompt: str | None) -> None:
        """A request was taken."""
        if text is not None:
            self._texts[request_id] = text
        if prompt is not None:
            self._prompts[request_id] = prompt

    def owes(self, request_id: str, *, stepping: bool) -> bool:
        """Whether a request of that id has ended and its last output was not given: it would get the other's text."""
        if stepping and request_id in self._texts:
            return True
        return bool(self._aborted) and any(r.request_id == request_id for r in self._aborted)

    def of_step(self, step: Step | None, *, wanted: bool = True) -> list[RequestOutput]:
        """What a step brought, and who was aborted within it or since; unless it is ``wanted`` only dropped."""
        aborted, self._aborted = self._aborted, []
        untold, self._untold = self._untold, set()
        batch, sampled, finished = (step.batch, step.sampled, step.finished) if step is not None else ((), (), ())
        if not wanted:
            for request in (*finished, *aborted):
                self._forget(request.request_id)
            return []
        sampled_now, ended = {*sampled, *untold}, {*finished, *aborted}
        outputs = []
        for request in dict.fromkeys((*batch, *aborted)) if ended else sampled:
            if request in sampled_now or request in ended:
                text = self._texts.get(request.request_id)
                if request in sampled_now:
                    self._push(request, text)
                prompt = self._prompts.get(request.request_id)
                outputs.append(make_output(request, prompt, text, request in sampled_now))
                if request.is_finished:
                    self._forget(request.request_id)
        return outputs

    def _push(self, request: Request, text: OutputText | None) -> None:
        """Decode the last token, where looking for stop strings has not done it already."""
        if text is None or request._stop_check is not None or request.finish_reason == "stop":
            return  # the text of a stop token is no output
        try:
            text.push(request._tokens[-1])
        except Exception as error:  # that request's fault alone
            what = f"its text cannot be made: {type(error).__name__}: {error}"
            if request.is_finished:
                request.error = what
            else:
                self._fail(request, what)

    def of_aborted(self, request: Request, *, is_new: bool, within: bool) -> RequestOutput:
        """What an aborted request has brought so far.

        Args:
            request: it has ended.
            is_new: its last token was told by no output.
            within: it was aborted within a step: its last output is given once more, with that step.
        """
        request_id = request.request_id
        text = self._texts.get(request_id)
        if is_new and not within:
            self._push(request, text)
        output = make_output(request, self._prompts.get(request_id), text, is_new, told=not within)
        if within:
            self._aborted.append(request)
            if is_new:
                self._untold.add(request)
        else:
            self._forget(request_id)
        return output

    def _forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
        self._prompts.pop(request_id, None)
