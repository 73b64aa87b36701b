"""In order of arrival, and the newest first while a queue stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from pydantic import Field

from batchwright import Params, Policy, Request, Step, hookimpl


class AdaptiveLifoParams(Params):
    """Parameters of :class:`AdaptiveLifo`."""

    queue_s: float = Field(
        default=1.0,
        ge=0,
        description="A queue stands while the oldest that waits came longer ago than this, in seconds; then the newest "
        "goes first. 0: always.",
    )


class AdaptiveLifo(Policy):
    """Residents, then newcomers by arrival, or the newest first while the oldest has waited too long.

    Source: Ben Maurer, "Fail at Scale", ACM Queue 13(8), 2015 (Facebook's adaptive LIFO): under overload the oldest in
    a queue has waited so long that its caller has given up, and serving in order makes all others wait as long. Serving
    the newest meets the objectives of those that can still be met; the oldest wait for the rush to be over. The paper
    pairs it with CoDel, which drops from the queue; this policy refuses nobody.

    Evicted requests stand at the head of the queue and have cost something already: they go first either way. Nobody is
    evicted for a newcomer, and nobody overtakes one that does not fit. It is one hook, ``admission``; the rest is the
    core's. A step costs O(its batch), whatever waits.
    """

    Params = AdaptiveLifoParams
    params: AdaptiveLifoParams
    scans_waiting = False

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Decodes, prompts that go on, who was evicted, then newcomers."""
        yield step.decodes
        yield step.prefilling
        if step.preempted:  # nobody is let in while blocks are short
            return
        for request in self._in_order(step):
            yield request
            if not request.num_scheduled:
                return

    def _in_order(self, step: Step) -> Iterator[Request]:
        """Who waits, as they are offered room; who was evicted stands at the head of the queue."""
        for request in step.waiting:
            if not request.num_preemptions and step.now_s - request.arrival_s > self.params.queue_s:
                yield from takewhile(lambda r: not r.num_preemptions, reversed(step.waiting))
                return
            yield request
