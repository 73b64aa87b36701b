"""Who is where in vLLM's scheduler, in the order in which a policy sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchwright.standing import FINISHED, RESIDENT, WAITING
from batchwright_backends.vllm.guest_request import Guest, Riding
from batchwright_backends.vllm.guest_step import Line

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]


class Shadow:
    """Requests of vLLM's scheduler, as guests.

    Attributes:
        guests: unfinished requests by id.
        strange: those that the policy is not shown, by id, and that come and go by themselves: their inputs come bit by
            bit, or are embeddings.
        waiting, residents, prefilling: as of a step; who waits for a grammar is in none of them.
        evicted: since the last step.
        left: who ended since the last step was told.
        riding: who is in the batch as a whole.
    """

    def __init__(self) -> None:
        """Nobody is here."""
        self.guests: dict[str, Guest] = {}
        self.strange: dict[str, VllmRequest] = {}
        self.waiting, self.residents, self.prefilling = Line(), Line(), Line()
        self.evicted: list[Guest] = []
        self.left: set[Guest] = set()
        self.riding = Riding()

    def arrive(self, guest: Guest) -> None:
        """It waits."""
        self.guests[guest.request_id] = guest
        self.waiting.append(guest)

    def admit(self, guest: Guest) -> None:
        """It holds blocks, and prefills."""
        self._part()
        self.waiting.discard(guest)
        self.residents.append(guest)
        self.prefilling.append(guest)
        guest._state = RESIDENT

    def evict(self, request_id: str) -> None:
        """It lost its blocks, and waits at the head."""
        guest = self.guests.get(request_id)
        if guest is not None:
            self._part()
            self.residents.discard(guest)
            self.prefilling.discard(guest)
            self.waiting.prepend(guest)
            guest._state = WAITING
            self.evicted.append(guest)

    def leave(self, request_id: str) -> Guest | None:
        """It has ended; None: the policy never saw it."""
        self.strange.pop(request_id, None)
        guest = self.guests.pop(request_id, None)
        if guest is not None:
            self._part()
            guest._state = FINISHED
            self.left.add(guest)
            for line in (self.waiting, self.residents, self.prefilling):
                line.discard(guest)
        return guest

    def _part(self) -> None:
        """Residents are about to change: who rides in the step that is under way are those of now."""
        if self.riding.guests is self.residents:
            self.riding.guests = frozenset(self.residents.whole)

    def take_evicted(self) -> list[Guest]:
        """Who was evicted since this was asked last."""
        evicted, self.evicted = self.evicted, []
        return evicted

    def any_held(self) -> bool:
        """Whether vLLM will not run somebody in this step who has tokens on their way: nobody else need run."""
        return any(guest.is_held for line in (self.residents, self.waiting) for guest in line)

    def block(self, scheduler: Any) -> None:
        """Who waits for a grammar is shown to the policy when that is there."""
        for request in list(scheduler.deferred_waiting):
            if scheduler._is_blocked_waiting_status(request.status):
                guest = self.guests.get(request.request_id)
                if scheduler._handle_blocked_waiting_request(request):
                    if guest is not None and guest not in self.waiting:
                        self.waiting.append(guest)
                elif guest is not None:
                    self.waiting.discard(guest)
