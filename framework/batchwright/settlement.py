"""What the results of a step change, where it was taken for executed before they were there.

Most often nothing: values are filled in, and who ended by length has ended. Who stops with its token ends late, and
its row leaves the batch that was scheduled meanwhile. Where a row, or the whole batch, failed, what was built on it is
taken back as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchwright.awaited import Awaited
from batchwright.batch_builder import BatchBuilder
from batchwright.queues import put_first
from batchwright.request import FINISHED, RESIDENT, WAITING, Request
from batchwright.results import Over
from batchwright.rules import Rules
from batchwright.state import State
from batchwright.step import Step


class Settlement:
    """Settles the results of one step."""

    def __init__(self, state: State, builder: BatchBuilder, rules: Rules, awaited: Awaited, ahead: Step | None) -> None:
        """Takes the results, which are there or never will be, and the step scheduled meanwhile, if there is one."""
        self._state = state
        self._builder = builder
        self._rules = rules
        self._awaited = awaited
        self._step = awaited.step
        self._ahead = ahead
        self.revived: list[Request] = []

    def settle(self, *, retry: bool) -> Over:
        """Put everything right; who ends, and why, in batch order: they have ended, and observers are to be told."""
        state = self._state
        if self._awaited.is_given:
            self._leave_out_aborted()
        self._awaited.catch_up()
        self._awaited.detach()
        state.building = True  # observers of an eviction may change nothing, as in any step
        try:
            over = self._take_results() if self._awaited.is_known else self._take_back(retry=retry)
        finally:
            state.building = False
        if self._ahead is not None:
            self._ahead.num_residents = len(state.residents)
        return over

    def _leave_out_aborted(self) -> None:
        """Rows ahead whose request was aborted since are executed, but nothing is left to take of them."""
        ahead = self._ahead
        if ahead is None or not ahead._aborted:
            return
        ahead._num_riding = sum(r._state != FINISHED for r in ahead.batch[: ahead._num_riding])
        ahead.batch = [r for r in ahead.batch if r._state != FINISHED]

    # The values are there -------------------------------------------------------------------------------------

    def _take_results(self) -> Over:
        awaited, step, failed = self._awaited, self._step, self._awaited.result.failed
        lost = [r for r in step.batch if r.request_id in failed and awaited.lives(r)] if failed else []
        if lost or awaited.any_dropped:
            step.sampled = [r for r in awaited.rows if awaited.lives(r) and r not in lost]
        stopped = {r: reason for r, reason in awaited.stopped.items() if awaited.lives(r)}
        reasons = {**stopped, **dict.fromkeys(lost, "error")}
        if not reasons:
            return []
        for request in lost:
            request.error = failed[request.request_id]
        ending = [r for r in step.batch if r in reasons and r not in awaited.ended]
        for request, reason in reasons.items():
            if request in awaited.ended:  # observers were told of a length
                request.finish_reason = reason
        if lost:
            self._distrust(lost)
        self._take_out([r for r in ending if r.num_scheduled])
        for request in ending:
            self._state.end(request, reasons[request])
        for request in lost:
            self._awaited.forget_token(request)
        step.finished = [r for r in step.batch if r in awaited.ended or r in reasons]
        return [(r, reasons[r]) for r in ending]

    def _take_out(self, late: Sequence[Request]) -> None:
        """Take rows out of the batch ahead, before it is executed; what they were charged goes back."""
        ahead = self._ahead
        if ahead is None or not late:
            return
        for request in late:
            for block in ahead._fresh.pop(request, ()):
                self._state.blocks.unregister(block)
            num_tokens = request.num_scheduled
            if request._prefilling:
                ahead.num_prefill_tokens -= num_tokens
                ahead.budget += num_tokens
            else:
                ahead.num_decodes -= 1
                if self._rules.counts_decodes:
                    ahead.budget += 1
            if request._row >= 0:
                self._state.roster.leave(request)
                ahead._num_riding -= 1
            request._scheduled = 0
        gone = set(late)
        ahead.batch = [r for r in ahead.batch if r not in gone]

    def _distrust(self, lost: Sequence[Request]) -> None:
        """What these rows wrote must not be shared; newcomers ahead that share it already are computed later."""
        blocks = {b for request, new in self._awaited.registered if request in lost for b in new}
        for step in (self._step, self._ahead):
            for request in lost if step is not None else ():
                assert step is not None
                blocks.update(step._fresh.pop(request, ()))
        for block in blocks:
            self._state.blocks.unregister(block)
        if self._ahead is not None:
            self._requeue([r for r in self._ahead._admitted if not blocks.isdisjoint(r.block_table)])

    def _requeue(self, newcomers: Sequence[Request]) -> None:
        """Newcomers of the step ahead wait again."""
        ahead = self._ahead
        if ahead is None or not newcomers:
            return
        ahead._admitted.clear()  # observers were told of it
        num_before = len(ahead.preempted)
        for request in reversed(newcomers):
            if request._state == RESIDENT:
                self._builder.evict(ahead, self._rules, request, None)
        self._wait_again(ahead.preempted[num_before:])

    def _wait_again(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._state.residents.pop(request, None)
            self._state.prefilling.pop(request, None)
            request._state = WAITING
            put_first(self._state.queue, request)

    # They never will be ---------------------------------------------------------------------------------------

    def _take_back(self, *, retry: bool) -> Over:
        state, awaited, step, ahead = self._state, self._awaited, self._step, self._ahead
        state.still = False
        state.disband(ahead if ahead is not None else step)
        for _, new in awaited.registered:
            for block in new:
                state.blocks.unregister(block)
        for fresh in step._fresh.values():
            for block in fresh:
                state.blocks.unregister(block)
        step._fresh.clear()
        members = [r for r in step.batch if awaited.lives(r)]
        for request in members:
            self._awaited.forget_token(request)
        if state.roster.last_ns == awaited.told_ns:
            state.roster.last_ns = step.now
        if ahead is not None:
            self._requeue([*ahead._admitted])
        step.sampled, step.finished = [], [] if retry else members
        over = [] if retry else self._end_all(members)
        if retry:
            self._compute_again(members)
        fault = awaited.fault
        # Observers were told of that step: it is an event between two, which the next one tells.
        what = {"step": step.index, "kind": "backend_fault", "error": describe(fault), "retried": retry}
        state.events.append(what)
        return over

    def _end_all(self, members: Sequence[Request]) -> Over:
        for request in members:
            request.error = describe(self._awaited.fault)
            if request in self._awaited.ended:
                request.finish_reason = "error"
        ending = [r for r in members if r not in self._awaited.ended]
        self._take_out([r for r in ending if r.num_scheduled])
        for request in ending:
            self._state.end(request, "error")
        return [(r, "error") for r in ending]

    def _compute_again(self, members: Sequence[Request]) -> None:
        step = self._ahead if self._ahead is not None else self._step
        step._admitted.clear()
        back = []
        for request in reversed(members):
            if request in self._awaited.ended:
                self._revive(request)
            elif request._state == RESIDENT:
                self._builder.evict(step, self._rules, request, None)
            else:
                continue  # it was evicted already, and waits
            back.append(request)
        self._wait_again(back)

    def _revive(self, request: Request) -> None:
        """It ended with a token that never came: it waits again."""
        state = self._state
        request.finish_reason = None
        request._computed = 0
        request.num_preemptions += 1
        state.requests[request.request_id] = request
        state.num_stop_checks += request._stop_check is not None
        state.num_logprobs += request._logprobs is not None
        self.revived.append(request)


def describe(fault: BaseException | None) -> str:
    """A backend's fault in words."""
    if isinstance(fault, Exception):
        return f"the backend failed: {type(fault).__name__}: {fault}"
    return "interrupted"
