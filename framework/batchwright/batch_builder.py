"""Building the batch of one step: offers, room for them, evictions, and undoing it all.

This is the contract of one step, made fast: ``batchwright.testing.reference`` says the same in plain lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

from batchwright.errors import PolicyError
from batchwright.prefix_index import UNSHARED
from batchwright.queues import put_first
from batchwright.request import FINISHED, PREEMPTED, RESIDENT, WAITING, Request
from batchwright.roster import BY_ADMISSION, EVERYBODY, NOBODY
from batchwright.rules import NO_MORE, Rules
from batchwright.state import State
from batchwright.step import NOT_PREFILLING, Step


class BatchBuilder:
    """Builds batches out of a scheduler's state, under given rules."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._max_num_seqs, self._block_size = state.limits.max_num_seqs, state.blocks.block_size

    def build(self, step: Step, rules: Rules, *, fallback: bool = False) -> None:
        """Ask the policy whom to offer room, and make the batch.

        Raises:
            PolicyError: the policy broke a rule; ``undo`` and ``commit`` make the state whole again.
        """
        state = self._state
        # Short of blocks somebody may be evicted, and then the policy decides anew.
        if state.steady and len(state.roster.growing) <= state.blocks.num_free and self._ride(step, rules):
            return
        running = step.running
        barren = 0  # offers in a row that brought nothing
        enough = 10 * (len(self._state.queue) + len(self._state.residents)) + 1000
        offers = rules.admission(step)
        try:
            while True:
                offer: Any
                try:
                    offer = next(offers, NO_MORE)
                except PolicyError:
                    raise
                except Exception as error:
                    raise rules.raised(step, "admission", error) from error
                if offer is NO_MORE:
                    break
                if self._offer_ready(step, rules, offer):
                    barren = 0
                    continue
                before = len(step.batch)
                is_decodes = step._decodes is not None and offer is step._decodes
                if (offer is running or is_decodes) and self._ride(step, rules):
                    if offer is running and step.prefilling:
                        self._offer_each(step, rules, step.prefilling)
                    barren = 0
                    continue
                if isinstance(offer, Request):
                    self._offer(step, rules, offer)
                elif offer is not NOT_PREFILLING:
                    self._offer_each(step, rules, offer)
                barren = 0 if len(step.batch) != before else barren + 1
                if barren > enough:
                    message = f"{barren} offers in a row brought nobody into the batch; does it ever end?"
                    raise rules.error(step, "admission", "endless", message)
        finally:
            rules.close(step, offers)
        # Evicting only whom it admitted itself, a policy could go round for ever; a fallback takes what it finds.
        if not step.batch and not any(fallback or victim in self._state.residents for victim in step.preempted):
            raise self._stalled(step, rules)

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
            roster.enter(self._newcomers(n - roster.count))
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

    def _newcomers(self, num: int) -> list[Request]:
        """The decodes that are not on the roster, so many, in order of admission; most often they are the newest."""
        found = []
        for request in reversed(self._state.residents):
            if request._row < 0 and not request._prefilling:
                found.append(request)
                if len(found) == num:
                    break
        return found[::-1]

    def _offer_each(self, step: Step, rules: Rules, offers: Iterable[Request]) -> None:
        """A sequence of offers."""
        most = self._max_num_seqs
        for request in rules.sequence(step, offers):
            if len(step.batch) >= most:
                return  # nobody looks in between, and all that follow would get nothing
            if not self._offer_ready(step, rules, request):
                self._offer(step, rules, request)

    def _offer_ready(self, step: Step, rules: Rules, request: object) -> bool:
        """A decode that needs nothing but its place in the batch; False, and nothing done, for anything else."""
        if not isinstance(request, Request) or request._state != RESIDENT or request._prefilling:
            return False
        state, batch, length = self._state, step.batch, len(request._known)
        if (
            request._scheduled
            or request._row >= 0
            or length > request._room
            or request._roster is not state.roster  # it is of another scheduler
            or (state.early and not length % self._block_size)
            or len(batch) >= self._max_num_seqs
        ):
            return False
        if rules.counts_decodes:
            if step.budget <= 0:
                return False
            step.budget -= 1
        request._scheduled = 1
        batch.append(request)
        step.num_decodes += 1
        return True

    def _offer(self, step: Step, rules: Rules, request: Request) -> None:
        """One offer, by the contract: into the batch, or no trace but the evictions made for it."""
        self._check_offer(step, rules, request)
        if request._state == PREEMPTED or len(step.batch) >= self._max_num_seqs:
            return
        if request._state == RESIDENT:
            if request._row >= 0:
                self._state.disband(step)
            self._offer_resident(step, rules, request)
        else:
            while self._offer_waiting(step, rules, request):
                pass

    def _check_offer(self, step: Step, rules: Rules, request: Request) -> None:
        if not isinstance(request, Request):
            message = f"it yielded {request!r}: not a request"
            raise rules.error(step, "admission", "type", message, request)
        if request._state == FINISHED or self._state.requests.get(request.request_id) is not request:
            what = "finished" if request._state == FINISHED else "not of this engine"
            message = f"it offered request {request.request_id!r}, which is {what}"
            raise rules.error(step, "admission", "unknown", message, request)
        if request.num_scheduled:
            message = f"it offered request {request.request_id!r} twice"
            raise rules.error(step, "admission", "twice", message, request)

    def _num_tokens(self, step: Step, rules: Rules, request: Request) -> int:
        """Tokens that an offered request may run: asks ``chunking`` where there is anything to decide."""
        if request.num_tokens - request.num_computed > 1:
            return rules.chunk(step, request) if step.budget > 0 else 0
        free = not rules.counts_decodes and request._state == RESIDENT and not request._prefilling
        return 1 if free or step.budget > 0 else 0

    def _offer_resident(self, step: Step, rules: Rules, request: Request) -> None:
        num_tokens = self._num_tokens(step, rules, request)
        if not num_tokens:
            return
        blocks = self._state.blocks
        upto = request.num_computed + num_tokens
        if upto > request._room:
            while not blocks.can_append(request, upto):
                if not self._make_room(step, rules, request, "blocks") or request._state != RESIDENT:
                    return
            grown = -(-(upto - request._room) // blocks.block_size)
            blocks.append(request, grown)
            step._grown[request] = grown
        self._schedule(step, rules, request, num_tokens)

    def _offer_waiting(self, step: Step, rules: Rules, request: Request) -> bool:
        """True: begin anew, since an eviction changed its prefix hit."""
        blocks, most = self._state.blocks, self._state.limits.max_num_residents
        hits = blocks.lookup(request)
        request._computed = len(hits) * blocks.block_size
        again = admitted = False
        try:
            num_tokens = self._num_tokens(step, rules, request)
            if not num_tokens:
                return False
            while most is not None and step.num_residents >= most:
                if not self._make_room(step, rules, request, "seats"):
                    return False
                hits = blocks.lookup(request)  # an eviction may have left another block to answer
            again = self._state.early and len(blocks.lookup(request)) * blocks.block_size != request.num_computed
            if again:
                return True
            room = max(request.num_computed + num_tokens, rules.reserve(step, request))
            while not blocks.can_allocate(hits, room):
                if not self._make_room(step, rules, request, "blocks"):
                    return False
                hits = blocks.lookup(request)
                again = self._state.early and len(blocks.lookup(request)) * blocks.block_size != request.num_computed
                if again:
                    return True
            admitted = True
        finally:
            if not admitted:
                request.num_computed = 0
        blocks.allocate(request, hits, room)
        request._state = RESIDENT
        request._prefilling = True
        request.num_cached = request.num_computed
        step.num_residents += 1
        step._admitted[request] = None
        self._schedule(step, rules, request, num_tokens)
        return False

    def _schedule(self, step: Step, rules: Rules, request: Request, num_tokens: int) -> None:
        """Append a request that has its blocks to the batch, and charge the budget."""
        request.num_scheduled = num_tokens
        step.batch.append(request)
        if request._prefilling:
            step.num_prefill_tokens += num_tokens
            step.budget -= num_tokens
        else:
            step.num_decodes += 1
            if rules.counts_decodes:
                step.budget -= 1
        if self._state.early:
            awaited, upto = self._state.awaited, request.num_computed + num_tokens
            if awaited is not None and awaited.puts_off(request, upto):
                return
            fresh = self._state.blocks.register(request, upto)
            if fresh:
                step._fresh[request] = fresh

    # Eviction and undoing -----------------------------------------------------------------------------------

    def _make_room(self, step: Step, rules: Rules, request: Request, lacking: Literal["seats", "blocks"]) -> bool:
        """Evict whom the policy names; False when it names nobody."""
        step.lacking, step._asker = lacking, request
        try:
            victim = rules.victim(step, request)
        finally:
            step.lacking = step._asker = None
        if victim is None:
            return False
        self.evict(step, rules, victim, request)
        return True

    def evict(self, step: Step, rules: Rules, victim: Request, asker: Request | None) -> None:
        """Take a resident's blocks, and its row out of the batch; it waits again when the step is complete."""
        fresh = step._fresh.get(victim)
        if fresh:
            # Who shares a block that now stays empty goes along, last first.
            empty = set(fresh)
            after = step.batch[step.batch.index(victim) + 1 :]
            for other in reversed(after):
                if other.num_scheduled and not empty.isdisjoint(other.block_table):
                    self.evict(step, rules, other, asker)
        admitted = victim in step._admitted
        step._admitted.pop(victim, None)
        if victim.num_scheduled:
            self._take_out(step, rules, victim)
        if victim._row >= 0:
            self._state.roster.leave(victim)
        self._state.blocks.deallocate(victim)
        victim._high_water = max(victim._high_water, victim.num_computed)
        victim._state = PREEMPTED
        victim._prefilling = False
        victim.num_computed = 0
        victim.num_preemptions += 1
        step.preempted.append(victim)
        step.num_residents -= 1
        if admitted and self._state.hooks.request_admitted:
            self._state.tell(self._state.hooks.request_admitted, step, victim)
        if self._state.hooks.request_preempted:
            self._state.tell(self._state.hooks.request_preempted, step, victim, asker)

    def _take_out(self, step: Step, rules: Rules, request: Request) -> None:
        """Take a request out of the batch; what it was charged goes back."""
        if step._num_riding:
            self._state.disband(step)
        for block in step._fresh.pop(request, ()):
            self._state.blocks.unregister(block)
        if self._state.awaited is not None:
            self._state.awaited.put_off.pop(request, None)
        step.batch.remove(request)  # rare: a victim that was scheduled already; bounded by max_num_seqs
        if request._prefilling:
            step.num_prefill_tokens -= request.num_scheduled
            step.budget += request.num_scheduled
        else:
            step.num_decodes -= 1
            if rules.counts_decodes:
                step.budget += 1
        request.num_scheduled = 0

    def undo(self, step: Step) -> None:
        """Give back everything the batch took, last first; evictions stay."""
        blocks = self._state.blocks
        if step._num_riding:
            self._state.disband(step)
        self._state.roster.advancing_to = NOBODY
        if self._state.awaited is not None:
            self._state.awaited.put_off.clear()
        step._grown.update(dict.fromkeys(step._grown_by_one, 1))
        for request in reversed(step.batch):
            for block in step._fresh.pop(request, ()):
                blocks.unregister(block)
            request.num_scheduled = 0
            if request in step._admitted:
                blocks.deallocate(request)
                request._state = WAITING
                request._prefilling = False
                request.num_computed = request.num_cached = 0
                step.num_residents -= 1
            elif request in step._grown:
                blocks.take_back(request, step._grown[request])
            if request.num_computed < request._num_registered * blocks.block_size < UNSHARED:
                request._num_registered = request.num_computed // blocks.block_size
        step.batch.clear()
        step._admitted.clear()
        step._grown.clear()
        step._grown_by_one = ()
        step.num_prefill_tokens = step.num_decodes = 0
        step.budget = self._state.limits.max_num_batched_tokens

    def requeue(self, step: Step, rules: Rules, requests: list[Request]) -> None:
        """The backend failed with these, a part of the batch in its order: evict them, to be computed again."""
        step._admitted.clear()
        evicted = len(step.preempted)
        for request in reversed(requests):
            request._scheduled = 0
            step.batch.remove(request)
            self.evict(step, rules, request, None)
        for request in step.preempted[evicted:]:
            del self._state.residents[request]
            self._state.prefilling.pop(request, None)
            request._state = WAITING
            put_first(self._state.queue, request)

    def commit(self, step: Step) -> None:
        """Move who was admitted or evicted, now that the batch is complete."""
        for request in step._admitted:
            del self._state.queue[request]
            self._state.residents[request] = None
            self._state.prefilling[request] = None
            self._state.num_admissions += 1
            request._admission = self._state.num_admissions
            if request.first_scheduled_ns is None:
                request.first_scheduled_ns = step.now
        for victim in step.preempted:
            if self._state.residents.pop(victim, self) is self:
                del self._state.queue[victim]  # admitted in this very step
            else:
                self._state.prefilling.pop(victim, None)
            victim._state = WAITING
            put_first(self._state.queue, victim)

    def _stalled(self, step: Step, rules: Rules) -> PolicyError:
        waiting, residents = len(self._state.queue), len(self._state.residents)
        if residents and all(not self._state.blocks.can_append(r, r.num_computed + 1) for r in self._state.residents):
            why = "no block is free and your preemption evicted nobody"
        elif residents:
            why = f"your admission left out {residents} residents that could run"
        else:
            why = "the pool is free; your admission or chunking left out all that wait"
        message = f"nothing is scheduled and nobody was evicted ({waiting} waiting, {residents} resident): {why}"
        return rules.error(step, "admission", "progress", message)
