"""Steps taken at once: stretches in which nothing can be decided.

While nobody waits and all residents decode, a stationary policy lets them go on. Where somebody waits, it decides after
a step of all residents, decodes all, the same again until somebody arrives, ends, is evicted or aborted. A backend that
knows beforehand what those steps will give, as a simulator does, is asked once for all of them, and they are taken one
after the other without a batch, a step and its hooks for each. What changes in a request, in blocks and in the prefix
cache changes in the order of single steps. Who ends by its length ends in the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchwright.results import why_at_its_end
from batchwright.roster import EVERYBODY, NOBODY
from batchwright.roster_tokens import MOST_AHEAD
from batchwright.state import State
from batchwright.step import Step

if TYPE_CHECKING:
    from batchwright.backend import Ahead
    from batchwright.request import Request

_MANY = 32
"""Waiting requests whose prefix a policy looked at in one step, from which on nothing is leapt: each is watched."""
_NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True)
class Leap:
    """Steps that were taken at once, as observers are told of them.

    Each step ran the same decodes, one token each; nobody came, went or was evicted but those who ended with the last.

    Attributes:
        first_index: index of the first step; the others follow.
        start_ns: start of the first step, nanoseconds of the engine's clock.
        ends_ns: end of each step, where the next one starts.
        requests: the batch of each step, in its order.
        free_blocks: blocks that nobody holds, after each step.
        num_waiting: requests that wait.
        finished: who ended with the last step, in batch order.
        events: what detectors report, as records with their ``step``.
    """

    first_index: int
    start_ns: int
    ends_ns: Sequence[int]
    requests: Sequence[Request]
    _tokens: Callable[[], NDArray[np.uint32]]
    free_blocks: Sequence[int]
    num_waiting: int
    finished: Sequence[Request] = ()
    events: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ends_ns)

    @property
    def starts_ns(self) -> list[int]:
        """Start of each step."""
        return [self.start_ns, *self.ends_ns[:-1]]

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        """uint32[steps, requests]: what each request got in each step; read it while you are told of the leap."""
        return self._tokens()


class Leaper:
    """Takes the steps of one scheduler that are decided already.

    Attributes:
        num_steps: steps it took so far.
        is_allowed: the policy, and who observes, allow it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.num_steps = 0
        self.is_allowed = False

    def bind(self) -> None:
        """Look at policy and observers again; they changed.

        A policy that is stationary is not asked, so what it prepares in ``step_started`` is not needed either; whatever
        else wants to be told of every step is told of every step.
        """
        hooks = self._state.hooks
        informed = {name for _, name in hooks.steps_leapt}
        wanting = {name for _, name in hooks.step_finished}
        wanting |= {name for _, name in hooks.step_started if name not in hooks.policy.parts}
        self.is_allowed = hooks.policy.stationary and hooks.policy_alone and wanting <= informed

    def most(self, *, counts_decodes: bool) -> int:
        """How many steps can be taken at once at most, as far as that is known beforehand.

        Args:
            counts_decodes: whether a decode takes a token of the budget.
        """
        state = self._state
        if (
            not self.is_allowed
            or state.events  # told with the next step
            or state.num_stop_checks
            or state.num_logprobs
            or state.hooks.violation is not None
            or not state.hooks.neutral.stationary
        ):
            return 0
        roster = state.roster
        if state.queue:
            if not state.still or len(state.blocks.looked_up) > _MANY or not state.blocks.is_as_found():
                return 0
        elif not state.still:
            n = len(state.residents)
            if not state.steady or state.num_apart or n > state.limits.max_num_seqs:
                return 0
            if counts_decodes and n > state.limits.max_num_batched_tokens:
                return 0
            if roster.count != n:
                state.board(n)
        return min(roster.num_steps_to_end(), MOST_AHEAD)

    def can_defer(self) -> bool:
        """Whether nobody needs the tokens of the next step, but to read them one day."""
        state = self._state
        return (
            self.is_allowed
            and not state.stop_ids
            and not state.num_stop_checks
            and not state.num_logprobs
            and not state.blocks.cache.enabled
        )

    def take(self, ahead: Ahead, batch: Sequence[Request], index: int, now: int) -> Leap | None:
        """Take steps as far as nothing is to be decided in them; None: not one.

        Who ends with the last has not ended yet: ``Leap.finished`` says who will.

        Args:
            ahead: what the backend gives.
            batch: of each step.
            index: of the first.
            now: its start, nanoseconds of the engine's clock.
        """
        state = self._state
        roster, blocks, ends = state.roster, state.blocks, ahead.ends_ns
        num, draw = len(ends), ahead.draw
        if draw is not None and self.can_defer():
            roster.draw = draw
            roster.tokens.defer_ahead(roster.steps, num)
        else:
            draw = None
            if state.stop_ids:
                num = self._num_before_stop(ahead.token_ids[:num])
            roster.tokens.write_ahead(roster.steps, roster.order, ahead.token_ids[:num])
        watched = self._watched() if state.queue and blocks.cache.enabled else _NOBODY
        free: list[int] = []
        ending: Sequence[Request] = ()
        if not blocks.cache.enabled:
            ending = roster.next_steps(num, blocks, free)
            roster.last_ns = ends[len(free) - 1] if free else roster.last_ns
        while blocks.cache.enabled and (taken := len(free)) < num:
            skipped = roster.skip(num - taken)
            if skipped:
                free += [blocks.num_free] * skipped
                roster.last_ns = ends[taken + skipped - 1]
                continue
            if (roster.growing or roster.filling) and not self._make_room(watched):
                break
            due = roster.due_next() if watched and state.late else ()
            ending = roster.next_step(ends[taken])
            free.append(blocks.num_free)
            if ending or (due and any(blocks.index.last_hash(request) in watched for request in due)):
                break  # or: who waits finds more in the cache from now on, or something else
        taken = len(free)
        if not taken:
            return None
        self.num_steps += taken

        def tokens() -> NDArray[np.uint32]:
            if draw is None:
                return ahead.token_ids[:taken]
            columns = [draw(r._seed, r.num_output_tokens - taken, taken) for r in batch]
            return np.array(columns, dtype=np.uint32).T

        return Leap(index, now, ends[:taken], batch, tokens, free, len(state.queue), ending)

    def end(self, leap: Leap, step: Step) -> None:
        """The requests that end with the last step end, and observers are told of them and of the leap."""
        state = self._state
        if leap.finished:
            state.roster.advancing_to = EVERYBODY  # whoever is told of an end can read who ran
            over = [(request, why_at_its_end(request)) for request in leap.finished]
            try:
                for request, reason in over:
                    state.end(request, reason)
                for request, reason in over if state.hooks.request_finished else ():
                    state.tell(state.hooks.request_finished, request, reason)
            finally:
                state.roster.advancing_to = NOBODY
                for request in leap.finished:
                    request._scheduled = 0
            step.finished = leap.finished
            leap.free_blocks = [*leap.free_blocks[:-1], state.blocks.num_free]
            if state.events:
                leap.events += state.events
                state.events = []
        if state.hooks.steps_leapt:
            state.tell(state.hooks.steps_leapt, leap)
        step.events = leap.events

    def _num_before_stop(self, token_ids: NDArray[np.uint32]) -> int:
        """Steps before the first with a token that could stop anybody."""
        stops = np.isin(token_ids, np.array(sorted(self._state.stop_ids), dtype=np.uint32)).any(axis=1)
        return int(stops.argmax()) if stops.any() else len(token_ids)

    def _watched(self) -> frozenset[int] | set[int]:
        """Hashes of the blocks on which it depends what those find in the cache whom the policy looked at."""
        return {digest for r in self._state.blocks.looked_up for digest in r._hashes[: len(r._hits) + 1]}

    def _make_room(self, watched: frozenset[int] | set[int]) -> bool:
        """What scheduling the step would change; False, and nothing done, where a policy could decide otherwise.

        That is so where blocks run out, or where the step changes what a waiting request finds in the cache: the
        policy would look at it behind the decodes.
        """
        state = self._state
        roster, blocks = state.roster, state.blocks
        growing = [*roster.growing]
        if len(growing) > blocks.num_free:
            return False
        if watched:
            if growing and not watched.isdisjoint(blocks.hashes_of_next(len(growing))):
                return False
            if any(digest in watched for digest in roster.hashes_to_fill()):
                return False
        if growing:
            blocks.append_each(growing)
            roster.arrays.grew(growing)
            roster.growing = {}
        if roster.filling:
            roster.fill(roster.filling, {})
            roster.filling = {}
        return True


def last_step(state: State, leap: Leap, *, counts_decodes: bool) -> Step:
    """The last step of a leap, as it is after it was executed."""
    num = len(leap)
    start = leap.ends_ns[-2] if num > 1 else leap.start_ns
    step = Step(state, start, leap.first_index + num - 1)
    step.batch = list(leap.requests)
    step.num_residents = len(step.batch)
    step._num_riding = step.num_decodes = len(step.batch)
    if counts_decodes:
        step.budget -= len(step.batch)
    step.sampled = step.batch
    step._num_advanced = len(step.batch)
    step.end = leap.ends_ns[-1]
    return step
