"""One run of a policy over a generated workload, and everything that a check may ask about it."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchwright.active_policy import ActivePolicy
from batchwright.backend import Ahead
from batchwright.batch import Batch
from batchwright.config import EngineConfig
from batchwright.effective import effective_settings
from batchwright.errors import BatchwrightError, PolicyError, RefusedRequestError
from batchwright.limits import Limits
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.scheduler import Scheduler
from batchwright.testing.conditions import global_chance
from batchwright.testing.decision import Decision, Options
from batchwright.testing.scenarios import Scenario, Spec
from batchwright.testing.subject import Subject
from batchwright.testing.watch import Fault, Halt, Mutation, Watch

_IDLE_NS = 5_000_000_000
_LONGEST_LEAP = 1000


class Run:
    """A run, begun and ended when it is made.

    Attributes:
        decisions: of every step, up to the first fault.
        faults, mutations: what went wrong.
        refused: request id to reason.
        reasons: request id to why it ended.
        requests: weak references to those who came, where they are kept.
        is_complete: everybody who was accepted ended.
        calls: how often each hook was called while somebody waited and somebody was resident.
        broken: declaration that the policy breaks, to scenario and step.
        scheduler, policy: as they are after the run.
    """

    def __init__(self, subject: Subject, scenario: Scenario, options: Options | None = None) -> None:
        """Runs to the end, to the first fault, or until it is clear that there is no end."""
        self.subject, self.scenario = subject, scenario
        self.options = options = options if options is not None else Options()
        self.decisions: list[Decision] = []
        self.faults: list[Fault] = []
        self.mutations: list[Mutation] = []
        self.refused: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.requests: list[weakref.ref[Request]] = []
        self.is_complete = False
        self._rng = random.Random(f"events {scenario.name} {scenario.seed}")
        self._numbers: dict[str, Spec] = {}
        self._coming = list(reversed(scenario.specs))
        self._now = 0
        self._is_changed = True
        self._last_alone = False  # the last batch was of decodes only
        self._is_own = True  # the policy that is checked is in force
        self._next_swap: int | None = None
        with global_chance(options.salt):
            self.policy = self._make_policy()
            self.scheduler = self._make_scheduler(self.policy)
            self._watch = Watch(self.scheduler, scenario.name, options.is_thorough, options.gaze)
            try:
                self._drive()
            except Halt:
                pass
            except PolicyError as error:
                self._note(error)
            except Exception:
                if not self._watch.mutations:
                    raise
        self.calls = self._watch.calls
        self.broken = self._watch.broken
        self.faults += self._watch.faults
        self.mutations += self._watch.mutations

    def _make_policy(self) -> ActivePolicy:
        policy = self.subject.make()
        policy.stationary &= self.options.repeats
        return policy

    def _make_scheduler(self, policy: ActivePolicy) -> Scheduler:
        scenario = self.scenario
        wanted: dict[str, Any] = {
            "max_num_seqs": scenario.max_num_seqs,
            "max_num_batched_tokens": scenario.max_num_batched_tokens,
            "seed": scenario.seed,
        }
        if scenario.max_num_residents is not None:
            wanted["max_num_residents"] = scenario.max_num_residents
        if scenario.prefix_cache:
            wanted["prefix_cache"] = scenario.prefix_cache
        limits = Limits(
            scenario.max_num_seqs, scenario.max_num_batched_tokens, max_num_residents=scenario.max_num_residents
        )
        cache = PrefixCache(**scenario.prefix_cache)  # type: ignore[arg-type]
        try:
            effective = effective_settings(EngineConfig.parse(wanted), policy)
            limits, cache = effective.limits, effective.prefix_cache
        except Exception:  # its defaults are wrong: a check of its own says so
            pass
        return Scheduler(
            Policy(),  # until the watch is there
            num_blocks=scenario.num_blocks,
            block_size=scenario.block_size,
            limits=limits,
            prefix_cache=cache,
            seed=scenario.seed,
            on_policy_error="fallback" if self.options.fallback else "raise",
            plugins=self.subject.make_plugins(),
            strict=self.options.strict,
            predict_s=predict_s if policy.uses_predict else None,
            default=self.subject.make_default,
        )

    def _note(self, error: PolicyError) -> None:
        """A broken rule; what was raised in a hook is known already."""
        if error.rule != "raised" or not self._watch.faults:
            _, _, message = str(error).partition(f"rule {error.rule!r}: ")
            waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
            kind = type(error.value).__name__ if error.rule in ("type", "raised") else ""
            self.faults.append(
                Fault(error.hook, error.rule, kind, message, self.scenario.name, error.step, waiting, running)
            )

    # The course of a run ------------------------------------------------------------------------------------

    def _drive(self) -> None:
        scheduler, number = self.scheduler, 0
        swaps = self._plan_swaps()
        if not self.options.swaps:
            scheduler.swap_policy(self.policy)
        while self._coming or scheduler.has_unfinished():
            if number in swaps:
                swapped = swaps.pop(number)
                scheduler.swap_policy(swapped)
                self._is_changed, self._is_own = True, swapped is not self._default
            self._next_swap = min(swaps, default=None)
            self._arrive(number)
            if self.options.aborts:
                self._abort()
            if not scheduler.has_unfinished():
                if self._coming:  # idle until the next one comes
                    number = max(number + 1, self._coming[-1].arrives)
                    self._now += _IDLE_NS
                continue
            number += self._leap(number) or self._step()
            if number == self.options.most_steps:
                return
            if number > self.scenario.most_steps:
                left = [str(r.request_id) for r in (*scheduler.running, *scheduler.waiting)]
                message = f"after {number} steps {', '.join(left[:5])} had not ended"
                self.faults.append(Fault("", "stuck", "", message, self.scenario.name, number))
                return
        self.is_complete = True

    def _plan_swaps(self) -> dict[int, ActivePolicy]:
        if not self.options.swaps:
            return {}
        first, default = self.policy, ActivePolicy.of(self.subject.make_default(), "default")
        self._default: ActivePolicy = default
        second = self._make_policy()
        at, plan = 0, {0: default}
        for policy in (first, default, first, second):
            at += self._rng.randint(1, 4)
            plan[at] = policy
        return plan

    def _arrive(self, number: int) -> None:
        while self._coming and self._coming[-1].arrives <= number:
            spec = self._coming.pop()
            kind = {"kind": self.options.gaze.request_type} if self.options.gaze is not None else {}
            request = spec.make(self._now, self.options.salt, **kind)
            self._numbers[str(request.request_id)] = spec
            self._is_changed = True
            if self.options.keeps:
                self.requests.append(weakref.ref(request))
            try:
                self.scheduler.add(request, num_output_tokens=spec.hidden)
            except RefusedRequestError as error:
                self.refused[str(request.request_id)] = error.reason
            except PolicyError:
                raise
            except BatchwrightError as error:  # it can never fit, under limits that the policy wants
                self.refused[str(request.request_id)] = str(error)

    def _abort(self) -> None:
        there: list[Request] = [*self.scheduler.running, *self.scheduler.waiting]
        if there and self._rng.random() < 0.15:
            victim = self._rng.choice(there)
            self.scheduler.abort(victim.request_id)
            self.reasons[str(victim.request_id)] = "abort"
            self._is_changed = True

    def _leap(self, number: int) -> int:
        """Steps up to the next arrival, at once, where a policy that is stationary is not asked; how many they were."""
        scheduler = self.scheduler
        until = [self._coming[-1].arrives] if self._coming else []
        until += [self._next_swap] if self._next_swap is not None else []
        most = min(until) - number if until else _LONGEST_LEAP
        found = scheduler.look_ahead() if self.options.repeats and not self.options.aborts else None
        if found is None or most < 1:
            return 0
        batch, bound = found
        requests = list(scheduler.running)
        rows, ends = [], [self._now]
        for further in range(min(most, bound)):
            rows.append([self._numbers[str(r.request_id)].token(r.num_output_tokens + further) for r in requests])
            ends.append(ends[-1] + elapsed_ns(batch))
        first = scheduler.step.index + 1
        ahead = Ahead(np.array(rows, dtype=np.uint32), ends[1:])
        taken = scheduler.leap(batch, ahead, self._now, lambda _: None)
        self._now = ends[taken]
        chosen = tuple((str(r.request_id), 1) for r in requests)
        finished = scheduler.step.finished if taken else ()
        ended = tuple(str(r.request_id) for r in finished)
        self.reasons.update((str(r.request_id), str(r.finish_reason)) for r in finished)
        num_waiting = len(scheduler.waiting)
        self.decisions += [
            Decision(
                index,
                chosen,
                (),
                ended if index == first + taken - 1 else (),
                (),
                True,
                0,
                num_waiting,
                is_own=self._is_own,
            )
            for index in range(first, first + taken)
        ]
        return taken

    def _step(self) -> int:
        scheduler = self.scheduler
        num_waiting = len(scheduler.waiting)
        waiting: set[int] = set()
        if self.options.gaze is not None:
            waiting = {id(r) for r in scheduler.waiting}
            self.options.gaze.touched.clear()  # of arrivals, which are no part of a step
        decodes = self._closed()
        batch = scheduler.schedule(self._now)
        step = scheduler.step
        rows = tuple((str(r.request_id), r.num_scheduled) for r in step.batch)
        cut = tuple(str(r.request_id) for r in step.batch if r.num_pending > r.num_scheduled)
        preempted = tuple(str(r.request_id) for r in step.preempted)
        is_alone = not step.num_prefill_tokens and bool(rows)
        tokens = self._sample(batch, step.batch)
        self._now += elapsed_ns(batch)
        was_changed, self._is_changed = self._is_changed, False
        if self.options.aborts:
            self._abort()
        scheduler.update(batch, tokens, self._now)
        num_touched = 0
        if self.options.gaze is not None:
            num_touched = len(self.options.gaze.touched & waiting)
        self.reasons.update((str(r.request_id), str(r.finish_reason)) for r in step.finished)
        self._is_changed |= bool(step.finished or step.preempted)
        is_steady = self._last_alone and not was_changed and not preempted
        finished = tuple(str(r.request_id) for r in step.finished)
        self._last_alone = is_alone
        here = {name for name, _ in rows}
        left_out = tuple(name for name in decodes if name not in here) if decodes else None
        self.decisions.append(
            Decision(
                step.index,
                rows,
                preempted,
                finished,
                cut,
                is_steady,
                num_touched,
                num_waiting,
                left_out,
                is_own=self._is_own,
            )
        )
        return 1

    def _closed(self) -> list[str]:
        """Who decodes, where there is room for all of them and nobody can come in; else nobody."""
        scheduler, limits = self.scheduler, self.scheduler.limits
        num, seats = len(scheduler.running), limits.max_num_residents
        is_full = seats is not None and num >= seats and not self.policy.preemptive
        if (
            (scheduler.waiting and not is_full)
            or num > min(limits.max_num_seqs, limits.max_num_batched_tokens, scheduler.blocks.num_free)
            or any(request.is_prefilling for request in scheduler.running)
        ):
            return []
        return [str(request.request_id) for request in scheduler.running]

    def _sample(self, batch: Batch, requests: Sequence[Request]) -> list[int]:
        rows = zip(requests, batch.samples.tolist(), strict=True)
        return [self._numbers[str(r.request_id)].token(r.num_output_tokens) for r, samples in rows if samples]


def elapsed_ns(batch: Batch) -> int:
    """A millisecond a step, and ten microseconds a token."""
    return 1_000_000 + 10_000 * int(batch.num_scheduled.sum()) if len(batch) else 1_000_000


def predict_s(batch: Batch) -> float:
    """What a step of the kit takes."""
    return elapsed_ns(batch) / 1e9
