"""Watching a scheduler decide: what becomes of every offer, and who settled it.

While somebody listens, a scheduler builds its batches with a ``Witness`` in the place of its ``BatchBuilder``. It does
the same, by the same roads, and notes what happened: a reason is taken from what became of a request, never guessed
from the state around it. When nobody listens, the scheduler has its own builder back, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal, Protocol

from batchwright.batch_builder import BatchBuilder
from batchwright.errors import BatchwrightError, PolicyError
from batchwright.request import PREEMPTED, Request
from batchwright.rules import Rules
from batchwright.scheduler import Scheduler
from batchwright.step import Step
from batchwright.trace.account import Account
from batchwright.trace.layers import Layers
from batchwright.trace.reason import Reason
from batchwright.trace.watched_rules import WatchedRules


class Listener(Protocol):
    """Who is told of steps."""

    def built(self, account: Account) -> None:
        """A batch is complete, or undone (``account.is_undone``), and the queues have not moved yet.

        Told twice of a step that was undone and then built by the fallback.
        """
        ...


class Witness(BatchBuilder):
    """A builder that notes what it does.

    Attributes:
        listeners: who is told.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler._state)
        self._scheduler = scheduler
        self.listeners: list[Listener] = []
        self.layers = Layers()
        self._account = Account(scheduler.step, scheduler.policy.name)
        self._evicting: Request | None = None
        self._begin_attempt()

    @classmethod
    def listen(cls, scheduler: Scheduler, listener: Listener) -> None:
        """Tell a listener of every step from now on.

        Raises:
            BatchwrightError: a step is under way.
        """
        if scheduler.in_flight is not None or scheduler._state.building:
            raise BatchwrightError("a scheduler can be watched from between two steps on: finish the step first")
        if not isinstance(scheduler._builder, Witness):
            scheduler._builder = cls(scheduler)
        scheduler._builder.listeners.append(listener)

    @classmethod
    def leave(cls, scheduler: Scheduler, listener: Listener) -> None:
        """Tell it no more; the scheduler has its own builder back when nobody listens."""
        witness = scheduler._builder
        if isinstance(witness, Witness) and listener in witness.listeners:
            witness.listeners.remove(listener)
            if not witness.listeners:
                witness.layers.release()
                scheduler._builder = BatchBuilder(scheduler._state)

    # Building -----------------------------------------------------------------------------------------------

    def build_steady(self, step: Step, rules: Rules) -> bool:
        """Not before somebody listens: ``build`` does it."""
        return False

    def build(self, step: Step, rules: Rules, *, fallback: bool = False) -> None:
        """As the builder does."""
        if self._account.step is not step:
            self._account = Account(step, self._scheduler.policy.name)
        self._begin_attempt()
        account = self._account
        self.layers.watch(self._scheduler._hooks)
        watched = WatchedRules(rules.decisions, self.layers, plain=fallback)
        self._rules = watched
        try:
            super().build(step, watched, fallback=fallback)
        except BaseException as error:
            account.error = str(error) or type(error).__name__
            plugin, hook = (error.plugin, error.hook) if isinstance(error, PolicyError) else ("", "")
            account._undone = Reason("undone", hook, plugin, error=account.error)
            raise
        account.how = "fallback" if fallback else "policy" if watched.is_asked else "repeat"
        account._undone = None
        self._close(account, step, watched)
        self._tell(account)

    def _tell(self, account: Account) -> None:
        for listener in tuple(self.listeners):
            listener.built(account)

    def _begin_attempt(self) -> None:
        self._held: Request | None = None  # preemption evicted nobody for it, in its present offer
        self._num_offered = 0
        self._last: Request | None = None
        self._beyond: list[Request] = []
        self._lacking: Literal["seats", "blocks"] = "blocks"

    def _close(self, account: Account, step: Step, rules: WatchedRules) -> None:
        account.batch = tuple(step.batch)
        account._beyond = frozenset(self._beyond)
        by, over = rules.admission_by if rules.is_asked else (account.policy, "")
        account._decode = Reason("decode", "admission", by, over, is_repeated=not rules.is_asked, num_tokens=1)
        if rules.is_layered:
            offered = {*account._reasons, *account.batch, *account._beyond}
            account._withheld = {r: who for r, who in self.layers.withheld().items() if r not in offered}
            by, over = self.layers.end_of_offers(), ""
        last, other, other_kind = self._last, "", ""
        if last is not None:
            other, other_kind = last.request_id, account._reasons.get(last, account._decode).kind
        account._not_offered = Reason("not_offered", "admission", by, over, other=other, other_kind=other_kind)

    def undo(self, step: Step) -> None:
        """As the builder does; who was evicted stays so."""
        super().undo(step)
        account = self._account
        account._reasons = {r: reason for r, reason in account._reasons.items() if reason.was_evicted}
        self._tell(account)

    # Offers -------------------------------------------------------------------------------------------------

    def _ride(self, step: Step, rules: Rules) -> bool:
        if not super()._ride(step, rules):
            return False
        prefilling = self._state.prefilling
        self._last = next(r for r in reversed(self._state.residents) if r not in prefilling)
        return True

    def _offer_each(self, step: Step, rules: Rules, offers: Iterable[Request]) -> None:
        requests: Any = rules.sequence(step, offers)
        before = self._num_offered
        super()._offer_each(step, rules, requests)
        reached = self._num_offered - before
        if reached < len(requests):  # it ends when the batch is full
            self._beyond += islice(requests, reached, None)

    def _offer_ready(self, step: Step, rules: Rules, request: object) -> bool:
        if not super()._offer_ready(step, rules, request):
            return False
        assert isinstance(request, Request)
        self._num_offered += 1
        self._last = request
        return True

    def _offer(self, step: Step, rules: Rules, request: Request) -> None:
        watched = self._rules
        watched.budget, is_full = step.budget, len(step.batch) >= self._max_num_seqs
        was_evicted = isinstance(request, Request) and request._state == PREEMPTED
        self._held = watched.num_tokens = None
        super()._offer(step, rules, request)
        self._num_offered += 1
        self._last = request
        if was_evicted or request._state == PREEMPTED or self._held is request:
            return  # told where it happened
        reasons = self._account._reasons
        if request.num_scheduled:
            if request._prefilling:
                reasons[request] = self._ran(step, request)
            else:
                reasons.pop(request, None)  # from an earlier offer
        elif is_full:
            reasons[request] = Reason("batch_full", num_needed=self._max_num_seqs)
        elif watched.num_tokens == 0:
            pending = request.num_pending - watched.num_hit
            reasons[request] = Reason(
                "chunk_zero", "chunking", *watched.by["chunking"], num_pending=pending, budget=watched.budget
            )
        else:
            reasons[request] = Reason("no_budget", num_pending=request.num_pending)

    def _ran(self, step: Step, request: Request) -> Reason:
        num_tokens, pending = request.num_scheduled, request.num_pending
        is_admitted = request in step._admitted
        known: dict[str, Any] = {
            "is_admitted": is_admitted,
            "num_tokens": num_tokens,
            "num_pending": pending,
            "num_cached": request.num_cached if is_admitted else 0,
            "budget": self._rules.budget,
        }
        if num_tokens == pending:
            return Reason("prompt", "admission", *self._rules.admission_by, **known)
        return Reason("chunk", "chunking", *self._rules.by["chunking"], **known)

    # Room ---------------------------------------------------------------------------------------------------

    def _make_room(self, step: Step, rules: Rules, request: Request, lacking: Literal["seats", "blocks"]) -> bool:
        self._lacking = lacking
        if super()._make_room(step, rules, request, lacking):
            return True
        self._held = request
        needed, free = 1, 0
        if lacking == "blocks":
            num_tokens = 1 if request.num_pending == 1 else self._rules.num_tokens or 1
            room = request.num_computed + num_tokens
            if request.is_waiting:
                room = max(room, self._rules.room)
            needed, free = step.blocks_needed(request, room), step.free_blocks
        by, over = self._rules.by["preemption"]
        self._account._reasons[request] = Reason(
            "hold", "preemption", by, over, lacking=lacking, num_needed=needed, num_free=free
        )
        return False

    def evict(self, step: Step, rules: Rules, victim: Request, asker: Request | None) -> None:
        """As the builder does."""
        outer, self._evicting = self._evicting, victim
        try:
            super().evict(step, rules, victim, asker)
        finally:
            self._evicting = outer
        if asker is None:
            reason = Reason("retried")
        else:
            by, over = self._rules.by["preemption"]
            if outer is not None:
                reason = Reason("went_along", "preemption", by, over, other=outer.request_id)
            else:
                other = "" if victim is asker else asker.request_id
                reason = Reason("evicted", "preemption", by, over, lacking=self._lacking, other=other)
        self._account._reasons[victim] = reason
