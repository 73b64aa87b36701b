"""Detectors of thrash and starvation, as observers; what they find are events of the step, and stops nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from batchwright.backend import StepResult
from batchwright.config import DetectorConfig
from batchwright.hookspecs import hookimpl
from batchwright.leap import Leap
from batchwright.request import Request
from batchwright.step import Step

_FEWEST_STEPS = 20


class Detectors:
    """Watches one engine.

    Thrash: more than a share of the tokens of the last steps was recomputed. It is reported when it begins, and again
    after a whole window without it. A run shorter than the window is judged from its 20th step on.

    Livelock: step after step nobody gets a token and nothing is computed for the first time, until more was recomputed
    than ``livelock_pools`` pools hold: requests evict each other in turns, for ever. An event, and ``stop`` is told.

    Starvation: a waiting request was passed over by so many admissions of younger ones, or waits too long. Watched is
    the oldest waiting request that was not reported yet: whoever starves becomes the oldest, so this finds all, at
    O(log waiting) for each arrival.
    """

    name = "detectors"

    def __init__(self, config: DetectorConfig) -> None:
        self._config = config
        self.stop: Callable[[str], None] | None = None  # told why, when a run goes round in circles
        self._num_vain = 0  # tokens recomputed since anybody got on
        self._window: deque[tuple[int, int, int]] = deque()  # runs of steps: tokens, recomputed, how many steps
        self._most = config.thrash_steps
        # In the window; the first two are kept while there is anything of the third.
        self._num_steps = self._tokens = self._recomputed = 0
        self._quiet_until = -1
        self._waiting: list[tuple[int, Request]] = []  # a heap by arrival; those gone are dropped when they come up
        self._reported: set[Request] = set()
        self._oldest: Request | None = None
        self._passes = 0

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """Watch it too."""
        heappush(self._waiting, (request.arrival_index, request))

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        """It waits again."""
        if victim not in self._reported:
            heappush(self._waiting, (victim.arrival_index, victim))

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """Forget it."""
        self._reported.discard(request)

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        """Somebody else than the oldest was admitted: one pass."""
        oldest = self._watch()
        if oldest is not None and request.arrival_index > oldest.arrival_index:
            self._passes += 1

    @hookimpl(tryfirst=True)  # so that other observers of the step see what was found
    def step_finished(self, step: Step, result: StepResult) -> None:
        """Look at the step."""
        tokens, recomputed = step.num_prefill_tokens + step.num_decodes, step.num_recomputed
        if recomputed or self._recomputed:
            self._look_for_thrash(step.events, step.index, tokens, recomputed)
        else:
            self._note(tokens, 1)
        if step.sampled or tokens > recomputed:
            self._num_vain = 0
        else:
            self._look_for_livelock(step)
        oldest = self._watch() if self._waiting or self._oldest is not None else None
        if oldest is not None:
            self._look_for_starvation(step, oldest)

    @hookimpl(tryfirst=True)
    def steps_leapt(self, leap: Leap) -> None:
        """Look at each of the steps."""
        self._num_vain = 0  # somebody got a token
        num_tokens = len(leap.requests)
        if not self._recomputed and self._watch() is None:
            self._note(num_tokens, len(leap))
            return
        for index, end in enumerate(leap.ends_ns, leap.first_index):
            self._look_for_thrash(leap.events, index, num_tokens, 0)
            oldest = self._watch()
            if oldest is not None:
                self._look_for_starvation(_Instant(index, end, end, leap.events), oldest)

    def _look_for_starvation(self, step: Step | _Instant, oldest: Request) -> None:
        limit_s = self._config.starvation_s
        if self._passes >= self._config.starvation_passes or (
            limit_s is not None and _waited_s(step, oldest) > limit_s
        ):
            waited_s = round(_waited_s(step, oldest), 9)
            _report(
                step.events,
                step.index,
                "starvation",
                request_id=oldest.request_id,
                num_passes=self._passes,
                waited_s=waited_s,
            )
            self._reported.add(oldest)  # once is enough; the next oldest is watched from here on

    def _watch(self) -> Request | None:
        """The oldest request that still waits and was not reported."""
        waiting = self._waiting
        while waiting and (not waiting[0][1].is_waiting or waiting[0][1] in self._reported):
            heappop(waiting)
        oldest = waiting[0][1] if waiting else None
        if oldest is not self._oldest:
            self._oldest, self._passes = oldest, 0
        return oldest

    def _look_for_thrash(self, events: list[dict[str, Any]], index: int, tokens: int, recomputed: int) -> None:
        if not (recomputed or self._recomputed):
            self._note(tokens, 1)
            return
        if not self._recomputed:
            self._add_up()
        self._widen(tokens, recomputed)
        if not self._recomputed:
            return
        share = self._recomputed / self._tokens
        enough = self._num_steps >= min(_FEWEST_STEPS, self._most)
        if enough and share > self._config.thrash_share:
            if index >= self._quiet_until:
                _report(events, index, "thrash", recomputed_share=round(share, 6), num_steps=self._num_steps)
            self._quiet_until = index + self._most

    def _note(self, tokens: int, num_steps: int) -> None:
        """Steps of which nothing was recomputed, nor of those before them in the window: nobody asks for sums."""
        window = self._window
        window.append((tokens, 0, num_steps))
        if len(window) > self._most:
            window.popleft()

    def _add_up(self) -> None:
        """The sums over the window, up to whose last step none were kept."""
        runs, self._window = self._window, deque()
        self._num_steps = self._tokens = 0
        for tokens, recomputed, num_steps in reversed(runs):
            num = min(num_steps, self._most - self._num_steps)
            if not num:
                break
            self._window.appendleft((tokens, recomputed, num))
            self._num_steps += num
            self._tokens += tokens * num

    def _widen(self, tokens: int, recomputed: int) -> None:
        """Let a step into the window, and the oldest out."""
        window = self._window
        window.append((tokens, recomputed, 1))
        self._tokens += tokens
        self._recomputed += recomputed
        self._num_steps += 1
        if self._num_steps > self._most:
            oldest, again, num = window.popleft()
            self._tokens -= oldest
            self._recomputed -= again
            self._num_steps -= 1
            if num > 1:
                window.appendleft((oldest, again, num - 1))

    def _look_for_livelock(self, step: Step) -> None:
        self._num_vain += step.num_recomputed
        if self._num_vain > self._config.livelock_pools * step.num_blocks * step.block_size:
            _report(step.events, step.index, "livelock", num_recomputed=self._num_vain)
            if self.stop is not None:
                self.stop(
                    f"{self._num_vain} tokens were recomputed, which is more than {self._config.livelock_pools} pools "
                    "hold, and nobody got a token: does your preemption let requests evict each other in turns?"
                )
            self._num_vain = 0


@dataclass(slots=True)
class _Instant:
    """A step that was taken with others, as far as starvation goes."""

    index: int
    now: int
    end: int
    events: list[dict[str, Any]]


def _report(events: list[dict[str, Any]], index: int, kind: str, **values: Any) -> None:
    events.append({"step": index, "kind": kind, **values})


def _waited_s(step: Step | _Instant, request: Request) -> float:
    """Seconds from its arrival to the end of a step; with overlap that is waited for, so ask only where it decides."""
    return ((step.end or step.now) - request.arrival_ns) / 1e9
