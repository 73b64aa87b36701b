"""What the checks of one policy share: its runs, and which check each fault belongs to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from batchwright.testing import scenarios
from batchwright.testing.conditions import other_addresses, other_clocks
from batchwright.testing.decision import Options
from batchwright.testing.run import Run
from batchwright.testing.scenarios import Scenario
from batchwright.testing.subject import Subject
from batchwright.testing.watch import Fault, Mutation

_BY_RULE = {
    "type": "answers",
    "range": "budgets",
    "unknown": "offers",
    "twice": "offers",
    "endless": "offers",
    "victim": "exhaustion",
    "raised": "answers",
    "observer": "answers",
    "progress": "progress",
    "stuck": "progress",
}
"""Rule of the contract to the check that is about it."""

Make = Callable[[int, int, bool], Scenario]
"""Seed, number, and whether prompts may be cut, to a scenario."""

_WHEREVER = ("type", "range")
"""Rules that say enough of a fault, in whatever runs it shows."""


class Kit:
    """The runs of one policy, made when they are first asked for.

    A fault shows in many runs, and belongs to one check: the first that it shows in, of plain runs, tiny pools, aborts
    and swaps.

    Attributes:
        subject: what is checked.
        seed: of the generated states.
    """

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self.subject = subject
        self.seed = seed
        self.chunks = subject.make().chunks

    def run(self, scenario: Scenario, **options: Any) -> Run:
        """A run; one that ends at the first mutation, where the policy is known to alter what it is shown."""
        return Run(self.subject, scenario, Options(is_thorough=bool(self.mutations), **options))

    def scenarios(self, make: Make, number: int) -> list[Scenario]:
        """The first scenarios of a kind."""
        return [make(self.seed, n, self.chunks) for n in range(number)]

    def _some(self, *plans: tuple[Make, int]) -> list[Scenario]:
        return [scenario for make, number in plans for scenario in self.scenarios(make, number)]

    @cached_property
    def thorough(self) -> list[Run]:
        """Runs of every kind in which every request is compared around every hook; they come first."""
        plans: list[tuple[Scenario, Options]] = [
            *((s, Options(is_thorough=True)) for s in self.scenarios(scenarios.roomy, 3)),
            *((s, Options(is_thorough=True)) for s in self.scenarios(scenarios.tight, 2)),
            (scenarios.busy(self.seed, 0, self.chunks), Options(is_thorough=True, aborts=True)),
            (scenarios.busy(self.seed, 1, self.chunks), Options(is_thorough=True, swaps=True)),
        ]
        return [Run(self.subject, scenario, options) for scenario, options in plans]

    @cached_property
    def mutations(self) -> list[Mutation]:
        """What hooks altered."""
        return [m for run in self.thorough for m in run.mutations]

    @cached_property
    def strict(self) -> list[Run]:
        """Runs in strict mode, which sees what is written and put back, and grasps at private things."""
        plans = self._some((scenarios.roomy, 1), (scenarios.tight, 1), (scenarios.busy, 1))
        return [Run(self.subject, s, Options(strict=True, swaps=s is plans[-1])) for s in plans]

    @cached_property
    def broken(self) -> dict[str, tuple[str, int]]:
        """Declarations that an answer did not keep, to scenario and step."""
        return {name: where for run in (*self.tight, *self.roomy) for name, where in run.broken.items()}

    @cached_property
    def roomy(self) -> list[Run]:
        """Plain runs."""
        return [self.run(s) for s in self._some((scenarios.roomy, 6), (scenarios.busy, 2))]

    @cached_property
    def tight(self) -> list[Run]:
        """Runs in which blocks run out."""
        return [self.run(s) for s in self.scenarios(scenarios.tight, 6)]

    @cached_property
    def steady(self) -> list[Run]:
        """Runs that decode for long."""
        return [self.run(s) for s in self.scenarios(scenarios.steady, 3)]

    @cached_property
    def aborts(self) -> list[Run]:
        """Runs in which requests are aborted, at any moment."""
        plans = self._some((scenarios.busy, 3), (scenarios.roomy, 3), (scenarios.tight, 2))
        return [self.run(s.renamed(f"{s.name}-aborts"), aborts=True) for s in plans]

    @cached_property
    def swaps(self) -> list[Run]:
        """Runs in which the policy comes to a live engine, goes, comes back, and is replaced."""
        return [self.run(s.renamed(f"{s.name}-swaps"), swaps=True) for s in self._for_swaps]

    @cached_property
    def _for_swaps(self) -> list[Scenario]:
        return self._some((scenarios.busy, 4), (scenarios.steady, 1), (scenarios.roomy, 2), (scenarios.tight, 2))

    @cached_property
    def reruns(self) -> list[tuple[Run, Run]]:
        """Runs, and the same again under other conditions that no decision may depend on."""
        pairs = list(zip(self.thorough, (*self.roomy[:3], *self.tight[:2]), strict=False))
        for run in (*self.roomy[:3], *self.roomy[-2:], *self.tight[:4]):
            junk = other_addresses(run.scenario.seed)
            with other_clocks():
                pairs.append((run, self.run(run.scenario, salt=1 + run.scenario.seed)))
            del junk
        return pairs

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether the policy decides the same twice."""
        return all([d.choice for d in a.decisions] == [d.choice for d in b.decisions] for a, b in self.reruns)

    @cached_property
    def blame(self) -> dict[str, list[Fault]]:
        """Check to the faults that belong to it."""
        found: dict[str, list[Fault]] = {}
        seen: set[tuple[str, str, str]] = set()
        for group in ("roomy", "tight", "aborts", "swaps"):
            new: list[Fault] = []
            for run in getattr(self, group):
                new += [f for f in run.faults if f.key not in seen]
            for fault in new:
                found.setdefault(self._check_of(fault, group), []).append(fault)
            seen |= {f.key for f in new}
        return found

    def _check_of(self, fault: Fault, group: str) -> str:
        if fault.error == "BackendError" and "step.predict_s" in fault.message:
            return "declarations"
        if fault.rule in ("raised", "observer") and group in ("roomy", "tight") and fault.key in self.empty_faults:
            return "empty"
        if group == "roomy" or fault.rule in _WHEREVER:
            return _BY_RULE[fault.rule]
        return {"tight": "exhaustion", "aborts": "aborts", "swaps": "hot_swap"}[group]

    @cached_property
    def culprits(self) -> str:
        """Checks about what ends runs early, by name."""
        return ", ".join([*self.blame, *(["no_mutation"] if self.mutations else [])])

    @cached_property
    def empty_faults(self) -> set[tuple[str, str, str]]:
        """Kinds of exceptions that come only while a queue is empty, of hooks that work while none is.

        The default policy builds the steps that fail, so that a run goes on and meets both.
        """
        plans = self._some((scenarios.roomy, 6), (scenarios.busy, 2), (scenarios.tight, 6))
        runs = [self.run(s, fallback=True) for s in plans]
        # policy_attached meets full queues only in these:
        runs += [self.run(s, fallback=True, swaps=True) for s in self._for_swaps]
        kinds: dict[tuple[str, str, str], bool] = {}
        for fault in (f for run in runs for f in run.faults):
            is_empty = not (fault.num_waiting and fault.num_resident)
            kinds[fault.key] = kinds.get(fault.key, True) and is_empty
        called = {hook for run in runs for hook in run.calls}
        return {key for key, only in kinds.items() if only and key[0] in called}
