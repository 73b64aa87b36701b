"""What a scheduler holds: queues, KV blocks, hooks, and the count of faults.

The parts of the scheduler (building batches, taking results) share one object of this; policies never see it.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from batchwright.batch import Batch
from batchwright.block_manager import BlockManager
from batchwright.decisions import Decisions, Observer
from batchwright.limits import Limits
from batchwright.queues import Order, QueueView
from batchwright.request import FINISHED, RESIDENT, Home, Request


class State(Home):
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
        growing, filling: after a step of all residents, decodes all: those that lack a block in the next one, and
            those whose last block it fills; in order of admission. None where that must be looked for.
        building: a step is being built; queues are frozen.
        aborted_in_flight: somebody of the present batch was aborted after it was scheduled.
        events: of detectors and faults between two steps, told with the next.
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
        self.num_stop_checks = 0
        self.aborted_in_flight = False
        self.building = False
        self.growing: list[Request] | None = None
        self.filling: list[Request] | None = None

    def end(self, request: Request, reason: str) -> None:
        """End an unfinished request; its blocks are free when this returns."""
        if request._state == RESIDENT:
            # What was said of all residents is written down for this one.
            request._last_token_ns = request.last_token_ns
            request._computed = request.num_computed
            request._scheduled = request.num_scheduled
            self.blocks.deallocate(request)
            del self.residents[request]
            self.prefilling.pop(request, None)
            request._prefilling = False
        else:
            del self.queue[request]
        self.num_stop_checks -= request._stop_check is not None
        request._state = FINISHED
        request.finish_reason = reason
        request._hits, request._hit_key, request._hashes = array("i"), None, []
        del self.requests[request.request_id]

    def part_whole(self) -> None:
        """The batch of all residents is about to change: write into each what was said of all."""
        if self.whole:
            self.whole = False
            for request in self.residents:
                if request._state == RESIDENT and not request._prefilling:
                    request._scheduled = 1

    def settle_times(self) -> None:
        """The step that ends now is not one of all residents: keep when the last such step gave each its token."""
        if self.whole_ns is not None:
            for request in self.residents:
                if not request._prefilling:
                    request._last_token_ns = self.whole_ns
            self.whole_ns = None

    def tell(self, observers: tuple[Observer, ...], *args: Any) -> None:
        """Call observers; a fault in one is counted and noted, and undoes nothing."""
        for call, name in observers:
            try:
                call(*args)
            except Exception as error:
                self.num_observer_faults += 1
                hook = getattr(call, "__name__", "observer")
                self.events.append({"kind": "observer_fault", "plugin": name, "hook": hook, "error": repr(error)})
