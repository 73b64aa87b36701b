"""Building the batch of one step out of a policy's offers, undoing it, and moving the queues when it is complete.

This is the contract of one step, made fast: ``batchwright.testing.reference`` says the same in plain lines. What
becomes of one offer is in ``offers``, of decodes that go together in ``riders``, of victims in ``eviction``.
"""

from __future__ import annotations

from typing import Any

from batchwright.errors import PolicyError
from batchwright.prefix_index import UNSHARED
from batchwright.queues import put_first
from batchwright.request import WAITING, Request
from batchwright.riders import Riders
from batchwright.roster import NOBODY
from batchwright.rules import NO_MORE, Rules
from batchwright.step import NOT_PREFILLING, Step


class BatchBuilder(Riders):
    """Builds batches out of a scheduler's state, under given rules."""

    def build_steady(self, step: Step, rules: Rules) -> bool:
        """The batch of a step in which a stationary policy is not asked, where all go on; else False: ``build`` it."""
        roster = self._state.roster
        if roster.count != len(self._state.residents) or len(roster.growing) > self._state.blocks.num_free:
            return False
        return self._ride(step, rules)

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
            why = "your admission left out the residents, though they could run"
        else:
            why = "the pool is free; your admission or chunking left out all that wait"
        message = f"nothing is scheduled and nobody was evicted ({waiting} waiting, {residents} resident): {why}"
        return rules.error(step, "admission", "progress", message)
