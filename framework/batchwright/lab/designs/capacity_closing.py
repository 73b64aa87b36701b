"""What a search of capacities found and what it could not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchwright.lab.designs.measure import GOODPUT
from batchwright.lab.designs.ratio import about_edges

if TYPE_CHECKING:
    from batchwright.lab.designs.capacities import ArmCapacity, Capacities


def closing_lines(found: Capacities) -> Iterator[str]:
    """What the search found and what it could not, most urgent first."""
    plan = found.plan
    if found.was_interrupted:
        yield f"interrupted after {found.num_runs} runs: brackets are as wide as they were then"
    for arm in found.arms:
        if arm.error is not None:
            yield f"{arm.arm} failed: {type(arm.error).__name__}: {arm.error}"
    for ratio in found.ratios:
        yield ratio.words(plan.unit, plan.confidence, len(plan.seeds))
    if found.ratios and len(plan.seeds) > 1:
        yield about_edges(plan.confidence)
    for arm in found.arms:
        yield from _of_arm(arm, found)
    if plan.bounds and GOODPUT in {b.measure.name for b in plan.bounds} and not found.has_slo:
        yield (
            "no request has objectives of its own, so goodput counts all that finished; give them some with "
            "--slo 'ttft=1.0,tpot=0.05,goodput>0.95'"
        )
    if len(plan.seeds) == 1:
        yield "one seed: whether a load meets the objectives was told from one run each; take --seeds 5 for confidence"


def _of_arm(arm: ArmCapacity, found: Capacities) -> Iterator[str]:
    unit = found.plan.unit
    if not arm.points:
        return
    if arm.low is None and arm.is_done:
        lowest = arm.points[0]
        yield (
            f"{arm.arm}: even the lowest load, {lowest.load:,.4g} {unit}, does not meet "
            f"{', '.join(lowest.limited_by)}: its capacity is below; relax the objectives, or lower --lowest"
        )
    if arm.high is None and arm.is_done:
        yield (
            f"{arm.arm}: the highest load, {arm.points[-1].load:,.4g} {unit}, still meets all objectives: its "
            f"capacity is above; raise --highest, or {_longer(found)}"
        )
    if arm.contradictions:
        above = ", ".join(f"{point.load:,.4g}" for point in arm.contradictions)
        assert arm.high is not None
        yield (
            f"{arm.arm}: not monotone: {arm.high.load:,.4g} {unit} does not meet the objectives, and {above} does; "
            "the capacity given is the one below the first that does not. More seeds, or a longer workload, tell more"
        )
    if arm.low is not None and arm.low.num_overloaded:
        yield (
            f"{arm.arm}: at {arm.low.load:,.4g} {unit} a backlog grew until the end in {arm.low.num_overloaded} of "
            f"{len(found.plan.seeds)} seeds: a longer workload would not meet the same objectives there; "
            f"{_longer(found)}"
        )


def _longer(found: Capacities) -> str:
    """How every load is offered for longer."""
    if found.plan.users is not None:
        return "take a longer workload"
    if found.plan.duration_s is not None:
        return "take a longer --duration"
    return "say with --duration for how many seconds each load is offered"
