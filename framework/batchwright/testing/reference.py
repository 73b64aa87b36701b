"""The executable specification of a step: what the scheduler does, without anything that makes it fast.

Read this first, from ``Reference.schedule`` on. No caches, no fast paths: a prefix is its tokens, a queue is a list.
Recorded cases and property tests hold this file and ``batchwright.scheduler`` to the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.backend import StepResult
from batchwright.batch import Batch
from batchwright.errors import PolicyError
from batchwright.prefix_cache import PrefixCache
from batchwright.request import PREEMPTED, RESIDENT, WAITING, Request
from batchwright.testing.reference_base import ReferenceBase
from batchwright.testing.reference_blocks import Blocks
from batchwright.testing.reference_view import View


class Reference(ReferenceBase):
    """Drives like ``batchwright.scheduler.Scheduler``, and takes its settings."""

    def __init__(self, policy: Any = None, *, num_blocks: int, block_size: int, **settings: Any) -> None:
        blocks = Blocks(num_blocks, block_size, settings.get("prefix_cache") or PrefixCache())
        super().__init__(policy, blocks, settings)

    def schedule(self, now: int = 0) -> Batch:
        """Build the batch of a step."""
        if not self.has_unfinished():
            return Batch(self._num_steps, self.blocks.block_size, [], [])
        step = self.step = View(self, now)
        self._num_steps += 1
        self.tell("step_started", step=step)
        try:
            self.build(step, self.policy)
        except PolicyError:
            for request in step.batch[::-1]:
                self.leave(step, request)
            if self._on_policy_error == "raise":
                self.settle(step)
                raise
            self.num_policy_faults += 1
            self.build(step, self.fallback(step))
        self.settle(step)
        return Batch(step.index, step.block_size, step.batch[:], [r.num_scheduled for r in step.batch])

    def build(self, step: View, policy: Any) -> None:
        """Offer room in the order of the policy's ``admission``."""
        self.decider = policy
        for request in self.ask_offers(step):
            self.check(request in (*self.waiting, *self.running), "admission", "unknown", request)
            self.check(request not in step.batch, "admission", "twice", request)
            if request not in step.preempted and len(step.batch) < self.limits.max_num_seqs:
                self.offer(step, request)
        # Only to evict whom it admitted itself could go on for ever; the fallback takes a step as it finds it.
        moved = step.batch or [v for v in step.preempted if v in self.running or policy is not self.policy]
        self.check(bool(moved), "admission", "progress", None)

    def offer(self, step: View, request: Request) -> None:
        """Offer room to one request: it enters the batch, or all is as before but for evictions."""
        try:
            while not self.fit(step, request, is_newcomer=request.is_waiting):
                pass
        finally:
            if request.is_waiting:
                request.num_computed = 0

    def fit(self, step: View, request: Request, is_newcomer: bool) -> bool:
        """Find tokens, a seat and blocks. False: an eviction changed the prefix hit, so the offer begins anew."""
        blocks, seats = self.blocks, self.limits.max_num_residents
        hits = blocks.lookup(request) if is_newcomer else []
        if is_newcomer:
            request.num_computed = len(hits) * blocks.block_size
        most = min(request.num_pending, step.budget)
        is_exempt = request.is_decode and not self.decider.budget_counts_decodes
        if is_exempt:
            chunk = 1
        elif request.num_pending == 1 or not most:
            chunk = most
        else:
            chunk = self.ask_number("chunking", step, request, neutral=most, most=most)
        if not chunk:
            return True
        while is_newcomer and seats is not None and step.num_residents >= seats:
            if not self.make_room(step, request, "seats"):
                return True
        if is_newcomer and len(blocks.lookup(request)) != len(hits):
            return False
        room = end = request.num_computed + chunk
        if is_newcomer:
            wanted = self.ask_number("reservation", step, request, neutral=request.num_tokens, most=None)
            room = max(end, min(wanted, request.num_prompt_tokens + request.max_tokens - 1))
        while blocks.needed(request, room) > blocks.num_free:
            if not self.make_room(step, request, "blocks"):
                return True
            if is_newcomer and len(blocks.lookup(request)) != len(hits):
                return False
        blocks.grow(request, blocks.lookup(request) if is_newcomer else [], room)
        if is_newcomer:
            request._state, request._prefilling, request.num_cached = RESIDENT, True, request.num_computed
        request.num_scheduled = chunk
        step.charged[request] = 0 if is_exempt else chunk
        step.batch.append(request)
        if blocks.cache.visible == "scheduled":
            step.fresh[request] = blocks.register(request, request.num_computed, end)
        return True

    def make_room(self, step: View, asker: Request, lacking: str) -> bool:
        """Evict whom the policy names; False: nobody, or the asker itself."""
        victim = self.ask_victim(step, asker, lacking)
        if victim is not None:
            self.evict(step, victim, asker)
        return victim is not None and victim is not asker

    def evict(self, step: View, victim: Request, asker: Request | None) -> None:
        """Take a resident's blocks away; who adopted blocks that it was to fill in this step goes first."""
        gone = [victim]
        for member in step.batch:
            unfilled = {block for r in gone for block in step.fresh.get(r, ())}
            if member is not victim and not unfilled.isdisjoint(member.block_table):
                gone.append(member)
        for request in reversed(gone):
            is_newcomer = request in step.batch and request not in step.held
            request._high_water = max(request._high_water, request.num_computed)
            if request in step.batch:
                self.leave(step, request)
            self.blocks.shrink(request, 0)
            request._state, request._prefilling, request.num_computed = PREEMPTED, False, 0
            request.num_preemptions += 1
            step.preempted.append(request)
            if is_newcomer:
                self.tell("request_admitted", step=step, request=request)
            self.tell("request_preempted", step=step, victim=request, request=asker)

    def leave(self, step: View, request: Request) -> None:
        """Take a row out of the batch, as if it had never been offered."""
        self.forget(step, [request])
        self.blocks.shrink(request, step.held.get(request, 0))
        if request not in step.held:
            request._state, request._prefilling, request.num_computed = WAITING, False, 0
        request.num_scheduled = 0
        del step.charged[request]
        step.batch.remove(request)

    def settle(self, step: View) -> None:
        """The batch is complete: newcomers move to the end of ``running``, victims to the head of ``waiting``."""
        self.decider = self.policy
        step.rows = [(r, r.num_scheduled, r.num_pending == r.num_scheduled, r.is_decode) for r in step.batch]
        newcomers = [r for r in step.batch if r not in step.held]
        for request in newcomers:
            self.waiting.remove(request)
            self.running.append(request)
            request.first_scheduled_ns = step.now if request.first_scheduled_ns is None else request.first_scheduled_ns
        self.requeue(step.preempted)
        for request in newcomers:
            self.tell("request_admitted", step=step, request=request)

    def update(
        self, batch: Batch, token_ids: Sequence[int], now: int = 0, failed: Mapping[str, str] | None = None
    ) -> View:
        """Take the sampled tokens: one for each row that has nothing more pending."""
        step, tokens, failed = self.step, iter(token_ids), failed or {}
        step.end = now
        over: list[tuple[Request, str]] = []
        for request, chunk, samples, _ in step.rows:
            token = next(tokens) if samples else None
            if request.request_id in failed:
                self.forget(step, [request])
            if request.is_finished:  # aborted meanwhile
                continue
            if request.request_id in failed:
                over.append((request, "error"))
                continue
            start = request.num_computed
            request.num_computed = end = start + chunk
            again = max(0, min(end, request._high_water) - start)
            request.num_recomputed, step.num_recomputed = request.num_recomputed + again, step.num_recomputed + again
            if self.blocks.cache.visible == "computed":
                self.blocks.register(request, start, end)
            if token is None:
                continue
            request._tokens.append(token)
            request._prefilling = False
            request.last_token_ns = now
            request.first_token_ns = now if request.first_token_ns is None else request.first_token_ns
            step.sampled.append(request)
            reason = self.stops(request, token)
            if reason is not None:
                over.append((request, reason))
        return self.finish(step, over, StepResult(token_ids, now - step.now, failed))
