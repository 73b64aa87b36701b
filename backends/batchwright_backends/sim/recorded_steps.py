"""The batches of a recorded run, told from the records of its requests and steps.

Step records count tokens; which request ran how many of them follows from when each request's tokens were there. A
request decodes in the step that ends with one of its tokens, and its prompt runs between its first step and the step of
its first token. Where that leaves a choice (several prompts cut in one step, recomputation after an eviction) the step
is left out, and so is every step whose counts do not come out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import RequestRecord, StepRecord


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a real run.

    Attributes:
        index: of its record.
        num_computed: int32[n], tokens of each row whose K and V existed before the step.
        num_scheduled: int32[n], tokens of each row in the step.
        num_sampled: rows that sampled a token.
        time_s: seconds, up to the start of the next step where somebody was still to run.
    """

    index: int
    num_computed: NDArray[np.int32]
    num_scheduled: NDArray[np.int32]
    num_sampled: int
    time_s: float

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.num_scheduled.sum())

    @property
    def regime(self) -> str:
        """``decode``, ``prefill`` or ``mixed``: what its rows are."""
        chunks = int(np.count_nonzero(self.num_scheduled > 1))
        return "decode" if not chunks else "prefill" if chunks == len(self.num_scheduled) else "mixed"


class _Prompt:
    """A request on its way to its first token."""

    def __init__(self, request: RequestRecord, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.computed = request.num_cached_tokens
        self.total = request.num_prompt_tokens
        self.known = first == last or not request.num_preemptions  # how many of its tokens ran so far


def recorded_steps(steps: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> list[RecordedStep]:
    """All steps whose batch is certain, in order.

    Args:
        steps: all steps of a run, in order.
        requests: all its requests.
    """
    ends = {step.end_ns: i for i, step in enumerate(steps)}
    starts = [step.start_ns for step in steps]
    decodes: list[list[int]] = [[] for _ in steps]  # contexts before the step
    prompts: list[list[_Prompt]] = [[] for _ in steps]  # that may run in the step
    finishers: list[list[_Prompt]] = [[] for _ in steps]
    doubtful: set[int] = set()  # somebody may have computed again what was evicted
    for request in requests:
        if request.first_scheduled_ns is None:
            continue
        at = [ends[t] for t in request.token_times_ns if t in ends]
        first = bisect_left(starts, request.first_scheduled_ns)
        left = len(steps) if request.finish_ns is None else bisect_left(starts, request.finish_ns)
        prompt = _Prompt(request, first, at[0] if at else left)
        for i in range(first, min(prompt.last, len(steps))):
            prompts[i].append(prompt)
        if at:
            finishers[at[0]].append(prompt)
        for place, i in enumerate(at[1:], start=1):
            if request.num_preemptions and i > at[place - 1] + 1:
                doubtful.update(range(at[place - 1] + 1, i + 1))
            else:
                decodes[i].append(request.num_prompt_tokens + place - 1)
    found = [
        _step(step, 0 if i in doubtful else _lasts(steps, i), decodes[i], finishers[i], prompts[i])
        for i, step in enumerate(steps)
    ]
    return [step for step in found if step is not None]


def _lasts(steps: Sequence[StepRecord], i: int) -> int:
    """Nanoseconds that a step kept the engine busy."""
    step = steps[i]
    busy = (step.num_running or step.num_waiting) and i + 1 < len(steps)
    return max((steps[i + 1].start_ns if busy else step.end_ns) - step.start_ns, 0)


def _step(
    step: StepRecord, lasts_ns: int, decodes: list[int], finishers: list[_Prompt], others: list[_Prompt]
) -> RecordedStep | None:
    rows = [(context, 1) for context in decodes]
    certain = step.num_decodes == len(decodes) and lasts_ns > 0
    left = step.num_prefill_tokens
    for prompt in finishers:
        num_tokens = prompt.total - prompt.computed
        certain = certain and prompt.known and num_tokens > 0
        rows.append((prompt.computed, num_tokens))
        left -= num_tokens
    if left > 0 and len(others) == 1 and certain:
        (cut,) = others
        rows.append((cut.computed, left))
        cut.computed += left
        certain = cut.computed < cut.total
        left = 0
    if left or not certain:
        for prompt in others:
            prompt.known = False
    if left or not certain or not rows:
        return None
    columns = np.array(rows, dtype=np.int32)
    return RecordedStep(step.index, columns[:, 0], columns[:, 1], len(decodes) + len(finishers), lasts_ns / 1e9)
