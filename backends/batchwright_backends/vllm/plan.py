"""What a policy would do with the next step, found out without doing anything."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from batchwright.decisions import Decisions
from batchwright.errors import PolicyError
from batchwright.hookspecs import HOLD
from batchwright.standing import PREEMPTED, RESIDENT, WAITING
from batchwright_backends.vllm.guest_request import Guest, Riding
from batchwright_backends.vllm.guest_step import GuestStep, Line, Pool
from batchwright_backends.vllm.watchdog import PolicyTimeoutError


class TooLong(Exception):
    """The policy took longer than it may."""


class Plan:
    """The batch that a policy asks for.

    Attributes:
        step: as the policy sees it.
        counts: tokens of each request, in the order of the offers; without the riders.
        riders: decodes that were offered as a whole and all run, a token each, before the others.
        victims: who is to be evicted, in order.
    """

    def __init__(self, step: GuestStep, decisions: Decisions, pool: Pool, riding: Riding, until_ns: int) -> None:
        """Nothing is decided yet; from ``until_ns`` of ``time.perf_counter_ns`` on the policy has taken too long."""
        self.step = step
        self.counts: dict[Guest, int] = {}
        self.riders: Collection[Guest] = ()
        self._riding = riding
        self.victims: list[Guest] = []
        self._decisions = decisions
        self._pool = pool
        self._until_ns = until_ns
        self._touched: list[Guest] = []
        self._admitted: set[Guest] = set()
        self._new: set[Guest] = set()  # also those that were evicted again
        self._pending: dict[Guest, int] = {}  # tokens of those in the batch that were pending

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return len(self.riders) + sum(self.counts.values())

    @property
    def rides_whole(self) -> bool:
        """Whether all residents ride, in their order, and no resident does anything else."""
        return self.riders is self.step.running and not self.victims and len(self.counts) == len(self._admitted)

    def residents(self) -> Iterator[Guest]:
        """Residents that run, in order."""
        yield from self.riders
        yield from (guest for guest in self.counts if guest not in self._admitted)

    def newcomers(self) -> Iterator[Guest]:
        """Who is to be admitted, in order."""
        return (guest for guest in self.counts if guest in self._admitted)

    @property
    def cuts(self) -> bool:
        """Whether somebody is to run less than he has pending."""
        return any(num < self._pending[guest] for guest, num in self.counts.items())

    def inexpressible(self) -> str | None:
        """Why vLLM cannot be made to do this; None: it can.

        It gives each the most that is left of a step's budget, and residents before newcomers.
        """
        left = self.num_tokens - len(self.riders)
        for guest in (*(g for g in self.counts if g not in self._admitted), *self.newcomers()):
            num = self.counts[guest]
            if num != min(self._pending[guest], left):
                return (
                    f"{guest.request_id} is to run {num} of {self._pending[guest]} tokens where {left} are left, and "
                    "only the last prompt of a step can be cut"
                )
            left -= num
        return None

    def rides(self, guest: Guest) -> bool:
        """Whether it is one of the riders."""
        return bool(self.riders) and guest in self.riders

    def make(self) -> None:
        """Ask the policy.

        Raises:
            PolicyError: it broke a rule, or raised.
            TooLong: it took too long.
        """
        decisions, step = self._decisions, self.step
        offers: Any = None
        try:
            offers = decisions.admission(step) if decisions.admission is not None else None
            if offers is None:
                offers = decisions.neutral.admission(step)  # type: ignore[arg-type]
            for offer in offers:
                if time.perf_counter_ns() > self._until_ns:
                    raise TooLong
                if isinstance(offer, Guest):
                    self._offer(offer)
                else:
                    self._offer_all(offer)
        except (PolicyError, TooLong):
            raise
        except PolicyTimeoutError:
            raise TooLong from None
        except Exception as error:
            raise self._error("admission", "raised", f"it raised {type(error).__name__}: {error}", error) from error
        finally:
            close = getattr(offers, "close", None)
            if close is not None:
                close()

    def undo(self) -> None:
        """The policy's plan stands in no request any more."""
        self._riding.guests = ()
        for guest in self._touched:
            guest.num_scheduled = 0
            guest.hit = 0
        for guest in self.victims:
            guest._state = RESIDENT
        for guest in self._new:
            guest._state = WAITING

    def _offer_all(self, offer: Sequence[Guest]) -> None:
        step = self.step
        guests = self._ride(offer) if len(offer) and not self.counts and not self.riders else offer
        for guest in list(guests):
            if len(step.batch) >= step.limits.max_num_seqs:
                return
            self._offer(guest)

    def _ride(self, offer: Sequence[Guest]) -> Sequence[Guest]:
        """Take decodes that were offered first and as a whole together: there is room for all, and nothing to ask.

        Each takes a token, and a block at most. Gives those that are left to be offered.
        """
        step = self.step
        if offer is not step.running and offer is not step.decodes:
            return offer
        rest: Sequence[Guest] = ()
        riders: Sequence[Guest] = offer
        if offer is step.running and step.prefilling:
            everybody = list(offer)
            first = everybody.index(step.prefilling[0])  # both are in order of admission
            riders, rest = everybody[:first], everybody[first:]
        is_looked_at = step.waiting or rest or step.prefilling  # somebody may look at them, or need what they leave
        if is_looked_at and any(guest.is_held for guest in riders):
            riders = [guest for guest in riders if not guest.is_held]
        if not len(riders) or len(riders) > min(step.budget, step.free_blocks, step.limits.max_num_seqs):
            return offer
        self.riders = self._riding.guests = riders if isinstance(riders, Line) else dict.fromkeys(riders)
        step.budget -= len(riders)
        whole = step.batch = riders.whole if isinstance(riders, Line) else tuple(riders)
        if is_looked_at:
            size = step.block_size
            places = [guest.theirs.num_computed_tokens % size for guest in whole]
            step.free_blocks -= places.count(0)
            if size - 1 in places:  # they fill a block, which others can share at once
                for guest, place in zip(whole, places, strict=True):
                    if place == size - 1:
                        self._pool.take(guest, guest.num_computed + 1)
        return rest

    def _offer(self, guest: Guest) -> None:
        """One offer, as the contract has it: tokens, a seat, blocks, a row."""
        step, limits = self.step, self.step.limits
        if guest.is_finished or guest in self.counts or self.rides(guest):
            raise self._error("admission", "offer", f"{guest.request_id} has finished, or is in the batch", guest)
        if guest._state == PREEMPTED or len(step.batch) >= limits.max_num_seqs:
            return
        self._touched.append(guest)
        is_new = guest._state == WAITING
        if is_new:
            guest.hit = self._pool.num_hit(guest)
        num = self._num_tokens(guest)
        if num and (not is_new or self._has_seat(guest)) and self._has_room(guest, num, is_new=is_new):
            self._pool.take(guest, guest.num_computed + num)
            if is_new:
                self._new.add(guest)  # first: what is in it is undone, wherever a policy is ended
                guest._state = RESIDENT
                self._admitted.add(guest)
                step.num_residents += 1
            self._pending[guest] = guest.num_pending
            self.counts[guest] = guest.num_scheduled = num
            step.budget -= num
            if not isinstance(step.batch, list):  # theirs who ride
                step.batch = list(step.batch)
            step.batch.append(guest)
        else:
            guest.hit = 0

    def _num_tokens(self, guest: Guest) -> int:
        step, pending = self.step, guest.num_pending
        if not step.budget or pending < 1 or guest.is_held:
            return 0
        if pending == 1:
            return 1
        most = min(pending, step.budget)
        asked = self._decisions.chunking
        num = asked(step, guest) if asked is not None else None
        if num is None:
            return most
        if not isinstance(num, int) or not 0 <= num <= most:
            raise self._error("chunking", "range", f"{num!r} is not a whole number from 0 to {most}", num)
        return num

    def _has_seat(self, guest: Guest) -> bool:
        step = self.step
        while step.limits.max_num_residents is not None and step.num_residents >= step.limits.max_num_residents:
            if not self._evict_for(guest, "seats"):
                return False
        return True

    def _has_room(self, guest: Guest, num: int, *, is_new: bool) -> bool:
        """Blocks for this chunk; of a newcomer, vLLM wants those of its whole present length free, and some to spare
        where somebody runs."""
        step, pool = self.step, self._pool
        while (needed := pool.needed(guest, guest.num_tokens if is_new else guest.num_computed + num)) + (
            pool.num_spare if is_new and step.num_residents else 0
        ) > step.free_blocks:
            if not self._evict_for(guest, "blocks"):
                return False
        step.free_blocks -= pool.needed(guest, guest.num_computed + num) if is_new else needed
        return True

    def _evict_for(self, guest: Guest, lacking: Any) -> bool:
        """Whether somebody else was evicted."""
        step = self.step
        step.lacking, step.asker = lacking, guest
        try:
            asked = self._decisions.preemption
            victim: Any = asked(step, guest) if asked is not None else None
            if victim is None:
                victim = self._decisions.neutral.preemption(step, guest)  # type: ignore[arg-type]
        finally:
            step.lacking = step.asker = None
        if victim is HOLD:
            return False
        if not isinstance(victim, Guest) or victim._state != RESIDENT:
            raise self._error("preemption", "victim", f"{victim!r} is no resident", victim)
        self._touched.append(victim)
        num = self.counts.pop(victim, 0)
        if self.rides(victim):
            others = [guest for guest in self.riders if guest is not victim]
            self.counts = {**dict.fromkeys(others, 1), **self.counts}
            self._pending |= dict.fromkeys(others, 1)
            for other in others:
                other.num_scheduled = 1
            self._touched += others
            self.riders, num = (), 1
            self._riding.guests = ()
        victim.num_scheduled = 0
        if num:
            step.budget += num
            step.batch = [other for other in step.batch if other is not victim]
        step.free_blocks += self._pool.given_back(victim)
        step.num_residents -= 1
        self.victims.append(victim)
        victim._state = PREEMPTED
        self._admitted.discard(victim)
        step.preempted.append(victim)
        return victim is not guest

    def _error(self, hook: str, rule: str, message: str, value: object) -> PolicyError:
        who = self._decisions.who(hook)
        return PolicyError(message, plugin=who, hook=hook, step=self.step.index, rule=rule, value=value)
