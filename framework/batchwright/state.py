"""What a scheduler holds: queues, KV blocks, hooks, and the count of faults.

The parts of the scheduler (building batches, taking results) share one object of this; policies never see it.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchwright.batch import Batch
from batchwright.block_manager import BlockManager
from batchwright.decisions import Decisions, Observer
from batchwright.limits import Limits
from batchwright.queues import Order, QueueView
from batchwright.request import FINISHED, RESIDENT, Request
from batchwright.roster import Roster

if TYPE_CHECKING:
    from batchwright.awaited import Awaited
    from batchwright.step import Step

APART = 4
"""Steps until decodes that parted go together again: what both cost is earned in about as many."""


class State:
    """The state of one scheduler.

    Attributes:
        limits, blocks, hooks: see there.
        queue: waiting requests, in order; ``waiting`` is its view.
        residents: requests that hold blocks, in order of admission; ``running`` is its view.
        prefilling: those of them that have sampled no token since their admission.
        requests: unfinished requests by id.
        early, late: whether full blocks are registered when they are scheduled, or when they are computed.
        stop_ids: every token id that ever could stop a request here.
        num_stop_checks: unfinished requests with stop strings.
        num_logprobs: unfinished requests that want log-probabilities.
        roster: the decodes that advance together.
        repeats: the policy declares itself stationary, and nobody decides beside it.
        still: what the last step decided is decided again: all residents decoded, by such a policy, nobody was evicted,
            and nobody came or went since.
        failed: the policy failed when it was asked last.
        num_apart: steps for which decodes are still decided one by one, after the roster was disbanded.
        num_admissions: admissions so far.
        building: a step is being built; queues are frozen.
        events: of detectors and faults between two steps, told with the next.
        awaited: the step that was taken for executed and whose results are not settled; None without overlap.
    """

    def __init__(
        self,
        limits: Limits,
        blocks: BlockManager,
        hooks: Decisions,
        seed: int,
        predict_s: Callable[[Batch], float | None] | None,
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.hooks = hooks
        self.queue: OrderedDict[Request, None] = OrderedDict()
        self.residents: Order = {}
        self.prefilling: Order = {}
        self.waiting = QueueView(self.queue)
        self.running = QueueView(self.residents)
        self.requests: dict[str, Request] = {}
        self.rng = random.Random(seed)
        self.predict_s = predict_s
        self.early = blocks.cache.enabled and blocks.cache.visible == "scheduled"
        self.late = blocks.cache.enabled and not self.early
        self.events: list[dict[str, Any]] = []
        self.num_observer_faults = 0
        self.stop_ids: set[int] = set()
        self.num_stop_checks = self.num_logprobs = 0
        self.building = False
        self.roster = Roster(blocks, early=self.early)
        self.num_apart = 0
        self.repeats = self.still = self.failed = False
        self.num_admissions = 0
        self.awaited: Awaited | None = None

    @property
    def steady(self) -> bool:
        """Nobody waits and all residents decode: a stationary policy lets all of them go on, and is not asked."""
        return (
            self.repeats
            and not self.queue
            and not self.prefilling
            and not self.failed
            and self.hooks.neutral.stationary
            and bool(self.residents)
        )

    def board(self, num: int) -> None:
        """Put all decodes on the roster; they are so many. Most often those that are not on it are the newest."""
        missing, found = num - self.roster.count, []
        for request in reversed(self.residents):
            if request._row < 0 and not request._prefilling:
                found.append(request)
                if len(found) == missing:
                    break
        self.roster.enter(found[::-1])

    def end(self, request: Request, reason: str) -> None:
        """End an unfinished request; its blocks are free when this returns."""
        self.still = False
        if request._state == RESIDENT:
            if request._row >= 0:
                self.roster.leave(request)
            request._computed = request.num_computed
            self.blocks.deallocate(request)
            del self.residents[request]
            self.prefilling.pop(request, None)
            request._prefilling = False
        else:
            del self.queue[request]
            self.blocks.looked_up.pop(request, None)
        self.num_stop_checks -= request._stop_check is not None
        self.num_logprobs -= request._logprobs is not None
        request._state = FINISHED
        request.finish_reason = reason
        request._hits, request._hit_key, request._hashes = array("i"), None, []
        del self.requests[request.request_id]

    def disband(self, step: Step) -> None:
        """Decodes are decided one by one in this step, and, since parting and meeting cost more, in some to come."""
        self.roster.disband()
        step._num_riding = 0
        self.num_apart = APART

    def gather_events(self, step: Step) -> None:
        """What happened between two steps is told with this one."""
        step.events += self.events
        self.events = []

    def tell(self, observers: tuple[Observer, ...], *args: Any) -> None:
        """Call observers; a fault in one is counted and noted, and undoes nothing."""
        for call, name in observers:
            try:
                call(*args)
            except Exception as error:
                self.observer_failed(call, name, error)

    def observer_failed(self, call: Callable[..., Any], name: str, error: Exception) -> None:
        """A fault in an observer is counted and noted."""
        self.num_observer_faults += 1
        hook = getattr(call, "__name__", "observer")
        self.events.append({"kind": "observer_fault", "plugin": name, "hook": hook, "error": repr(error)})
