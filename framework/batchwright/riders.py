"""Decodes that go into the batch together, on the roster: nothing about any of them is left to ask."""

from __future__ import annotations

from itertools import islice

from batchwright.offers import Offers
from batchwright.request import BY_ADMISSION, RESIDENT
from batchwright.roster import EVERYBODY
from batchwright.rules import Rules
from batchwright.step import Step


class Riders(Offers):
    """Puts all decodes into the batch at once; where blocks are short, who lacks one is offered room in its turn."""

    def _ride(self, step: Step, rules: Rules) -> bool:
        """All decodes at once, where there is room for all: no question is left to ask."""
        state, roster = self._state, self._state.roster
        n = len(state.residents) - len(state.prefilling)
        if not n or step.batch or step.preempted or n > state.limits.max_num_seqs:
            return False
        if rules.counts_decodes and n > step.budget:
            return False
        if state.num_apart:
            state.num_apart -= 1
            return False
        if roster.count != n:
            state.board(n)
        if state.prefilling and next(iter(state.prefilling))._admission < roster.newest._admission:
            return False  # a prompt stands between decodes
        blocks = state.blocks
        if len(roster.growing) > blocks.num_free:
            self._ride_in_order(step, rules)
            return True
        if roster.growing:
            step._grown_by_one = growing = list(roster.growing)
            blocks.append_each(growing)
            roster.arrays.grew(growing)
            roster.growing = {}
        if roster.filling:
            (state.awaited or roster).fill(roster.filling, step._fresh)
            roster.filling = {}
        roster.advancing_to = EVERYBODY
        step.batch.extend(islice(state.residents, n) if state.prefilling else state.residents)
        step._num_riding = step.num_decodes = n
        if rules.counts_decodes:
            step.budget -= n
        return True

    def _ride_in_order(self, step: Step, rules: Rules) -> None:
        """``_ride`` where blocks are short: whoever lacks one is offered room in its turn, behind all before it."""
        state, roster, blocks = self._state, self._state.roster, self._state.blocks
        everybody = list(islice(state.residents, roster.count))
        place = 0  # of the first who is not in the batch

        def ride_up_to(last: int) -> None:
            nonlocal place
            riders = [r for r in everybody[place:last] if r._row >= 0]
            place = last
            step.batch.extend(riders)
            step._num_riding += len(riders)
            step.num_decodes += len(riders)
            if rules.counts_decodes:
                step.budget -= len(riders)

        places = {request: index for index, request in enumerate(everybody)}
        filling = set(roster.filling)
        for request in sorted({*roster.growing, *filling}, key=BY_ADMISSION):
            if request._row < 0:
                continue  # evicted for one before it
            ride_up_to(places[request])
            roster.advancing_to = request._admission - 1
            if request.num_tokens > request._room:
                while not blocks.num_free and request._row >= 0:
                    if not self._make_room(step, rules, request, "blocks"):
                        place += 1
                        break
                if request._state != RESIDENT:
                    continue
                if request._row < 0 or not blocks.num_free:
                    # Somebody of the batch was evicted, or this one stays out: the others go one by one.
                    if roster.count:
                        state.disband(step)
                    self._offer_each(step, rules, everybody[place:])
                    return
                blocks.append(request)
                roster.arrays.grew([request])
                step._grown[request] = 1
            if request in filling:
                (state.awaited or roster).fill([request], step._fresh)
        ride_up_to(len(everybody))
        roster.growing, roster.filling = {}, {}
        roster.advancing_to = EVERYBODY
