"""One offer of room: into the batch by the contract, or no trace of it but the evictions made for it."""

from __future__ import annotations

from collections.abc import Iterable

from batchwright.eviction import Evictions
from batchwright.request import FINISHED, PREEMPTED, RESIDENT, Request
from batchwright.rules import Rules
from batchwright.state import State
from batchwright.step import Step


class Offers(Evictions):
    """Answers offers: how many tokens, room for them, a row of the batch."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._max_num_seqs, self._block_size = state.limits.max_num_seqs, state.blocks.block_size

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
