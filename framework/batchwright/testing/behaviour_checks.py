"""Checks that compare runs: chance, steadiness, hidden lengths, who is looked at, what is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from batchwright.testing import scenarios
from batchwright.testing.checks import check, need_runs, need_steps, same
from batchwright.testing.gaze import Gaze
from batchwright.testing.kit import Kit
from batchwright.testing.report import Failed, Skipped, Unreached
from batchwright.testing.run import Run

_NUM_ENDED, _MOST_KEPT = 600, 200
_FEW, _MANY, _MOST_STEPS = 300, 3000, 12


@check
def deterministic(kit: Kit) -> None:
    """Decisions follow from the view, the parameters and step.rng; nothing else, of this process or another."""
    for run, again in kit.reruns:
        same(
            "the same decisions in the same situation (usual causes: chance that is not step.rng, a set that is "
            "iterated, id(), real time, state shared between objects)",
            run,
            again,
        )
    need_runs(kit, [run for run, _ in kit.reruns])


@check
def stationary(kit: Kit) -> None:
    """Where it says stationary: what it decided it decides again until something changes."""
    if not kit.subject.make().stationary:
        raise Skipped("it does not declare stationary = True")
    compared = 0
    for run in (*kit.steady, *kit.roomy, *kit.tight, *kit.swaps):
        for before, now in zip(run.decisions, run.decisions[1:], strict=False):
            if not (now.is_steady and now.is_own):
                continue
            compared += 1
            if before.choice != now.choice:
                raise Failed(
                    "expected the decision of the step before, since stationary is True and no request came, went or "
                    f"was evicted; before {before.describe()}, now {now.describe()}",
                    run.scenario.name,
                    now.step,
                )
    need_runs(kit, (*kit.steady, *kit.roomy, *kit.tight))
    need_steps(compared, "none was like the one before")
    for run in (*kit.steady, *kit.swaps):
        repeated = kit.run(run.scenario, repeats=True, swaps=run.options.swaps)
        same(
            "the same decisions when it is not asked while nothing changes, nor while nobody waits and no prompt is "
            "under way, and not told of each step (usual causes: step_started counts steps; it leaves a decode out "
            "when nobody waits)",
            run,
            repeated,
        )


@check
def steady(kit: Kit) -> None:
    """Where it says steady: all decodes run where nobody can come in and no prompt is under way."""
    if not kit.subject.make().steady:
        raise Skipped("it does not declare steady = True")
    seen = 0
    for run in (*kit.steady, *kit.roomy, *kit.tight, *kit.swaps):
        for one in run.decisions:
            if one.left_out and one.is_own:
                raise Failed(
                    "expected all decodes to run, since steady is True, no prompt is under way, and nobody waits or "
                    f"all seats are taken; left out {', '.join(one.left_out)}, {one.describe()}",
                    run.scenario.name,
                    one.step,
                )
            seen += one.left_out is not None
    need_runs(kit, (*kit.steady, *kit.roomy, *kit.tight))
    need_steps(seen, "in none could nobody come in")


@check
def no_oracle(kit: Kit) -> None:
    """Nothing depends on how long requests really run, before that shows."""
    if not kit.is_repeatable:
        raise Unreached("it does not decide the same twice; mend this first: deterministic")
    seen: list[Run] = []
    for number in range(4):
        one, other = (kit.run(scenario) for scenario in scenarios.secret(kit.seed, number, kit.chunks))
        seen += (one, other)
        ends = [d.step for run in (one, other) for d in run.decisions if d.finished]
        same(
            "the same decisions in two workloads that differ only in how long requests really run, up to the first "
            "end (that length is hidden: read max_tokens or predicted_output_tokens)",
            one,
            other,
            upto=min(ends, default=0) + 1,
        )
    need_runs(kit, seen)


@check
def complexity(kit: Kit) -> None:
    """Where it says scans_waiting = False: a step does not look at all who wait."""
    policies = kit.subject.policies()
    if any(getattr(policy, "scans_waiting", True) for policy in policies):
        raise Skipped("it does not declare scans_waiting = False")
    few, many = (_touched(kit, number) for number in (_FEW, _MANY))
    if many > 2 * few + 16 or many > _MANY / 4:
        raise Failed(
            f"expected a step to look at a few of those who wait, since scans_waiting is False; with {_FEW} waiting it "
            f"looked at {few:.0f} a step and with {_MANY} at {many:.0f}: keep a heap by observers, stop early, and "
            "slice no queue",
            f"crowd-{_MANY}",
        )


def _touched(kit: Kit, num_waiting: int) -> float:
    """Waiting requests looked at in a step, on average."""
    scenario = scenarios.crowd(kit.seed, num_waiting, kit.chunks)
    run = kit.run(scenario, gaze=Gaze(), most_steps=_MOST_STEPS)
    if not run.decisions:
        need_runs(kit, [run])
    return sum(d.num_touched for d in run.decisions) / len(run.decisions)


@check
def no_leaks(kit: Kit) -> None:
    """What it keeps of requests goes when they end."""
    run = kit.run(scenarios.waves(kit.seed, _NUM_ENDED), keeps=True)
    need_runs(kit, [run])
    taken = _NUM_ENDED - len(run.refused)
    alive = [ref for ref in run.requests if ref() is not None]
    if len(alive) > _MOST_KEPT:
        gc.collect()
        alive = [ref for ref in alive if ref() is not None]
    if len(alive) > _MOST_KEPT:
        raise Failed(
            f"expected requests to be let go when they end; {len(alive)} of {taken} are still held"
            f"{_holder(run, alive)}: drop them in request_finished",
            run.scenario.name,
        )
    for name, size in _sizes(run):
        if size > _MOST_KEPT:
            raise Failed(
                f"expected nothing to grow with the number of requests that ended; after {taken} of them {name} has "
                f"{size} entries: drop them in request_finished",
                run.scenario.name,
            )


def _holder(run: Run, alive: list[weakref.ref[Any]]) -> str:
    """Which attribute holds a request, if one does at once."""
    request = alive[0]()
    for name, value in _attributes(run):
        if isinstance(value, (list, tuple, set, frozenset, dict)) or hasattr(value, "__iter__"):
            try:
                members = list(value.items() if isinstance(value, dict) else value)
            except Exception:  # an object of the policy's own that cannot be iterated now
                continue
            if any(m is request or (isinstance(m, tuple) and any(x is request for x in m)) for m in members):
                return f", some by {name}"
    return ""


def _sizes(run: Run) -> Iterator[tuple[str, int]]:
    for name, value in _attributes(run):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            continue
        try:
            yield name, len(value)
        except Exception:  # as above
            continue


def _attributes(run: Run) -> Iterator[tuple[str, Any]]:
    for part in run.policy.parts.values():
        for name, value in getattr(part.policy, "__dict__", {}).items():
            yield f"{type(part.policy).__name__}.{name}", value
