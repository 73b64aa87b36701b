"""Taking blocks, and rows of the batch, from a resident: who is named by the policy, and who goes along."""

from __future__ import annotations

from typing import Literal

from batchwright.request import PREEMPTED, Request
from batchwright.rules import Rules
from batchwright.state import State
from batchwright.step import Step


class Evictions:
    """Evicts residents while the batch of a step is built, in a scheduler's state."""

    def __init__(self, state: State) -> None:
        self._state = state

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
