"""What a search of parameters found and whether to believe it, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from batchwright.lab.designs.axis import shown
from batchwright.lab.designs.gain import gain_of
from batchwright.lab.designs.tune_plan import DEFAULT, TUNED
from batchwright.lab.verdict import BETTER, WORSE
from batchwright.lab.wording import NONE

if TYPE_CHECKING:
    from batchwright.lab.designs.tuning import Trial, Tuning


def closing_lines(tuning: Tuning) -> Iterator[str]:
    """What was found and whether to believe it, most urgent first."""
    plan, best = tuning.plan, tuning.best
    if tuning.was_interrupted:
        yield f"interrupted: {len(tuning.trials)} of {plan.num_trials} trials are done"
    failed = [trial for trial in tuning.trials if trial.error is not None]
    if failed:
        yield f"{len(failed)} trials failed, the first with: {failed[0].error}"
    if best is None:
        yield "no trial met all objectives: widen the spaces, or relax the objectives"
        return
    if best.values == tuning.given:
        yield "nothing that was tried is better than what was given: keep it"
        return
    yield from _at_an_end(tuning, best.values)
    if tuning.validation is None:
        yield "the best trial was not validated: of many trials the best looks better than it is"
        return
    yield from _validated(tuning, best)


def _at_an_end(tuning: Tuning, values: Mapping[str, Any]) -> Iterator[str]:
    """Values at the end of their range: beyond it there may be better ones."""
    for space in tuning.plan.spaces:
        value = values[space.name]
        if space.kind != "choice" and value in (space.low, space.high):
            yield f"the best {space.name} is {shown(value)}, an end of its range: a wider one may hold a better"


def _validated(tuning: Tuning, best: Trial) -> Iterator[str]:
    plan = tuning.plan
    goal, edges = tuning.on_fresh_seeds(TUNED)
    gain = gain_of(tuning)
    search = f"{plan.goal.name} was {goal_number(best.goal)} in the search and is {goal_number(goal)} on fresh seeds"
    if gain is not None and gain.words == BETTER:
        yield f"the gain holds on fresh seeds; {search}"
    elif gain is not None and gain.words == WORSE:
        yield f"on fresh seeds it is worse than what was given: keep that; {search}"
    else:
        given, _ = tuning.on_fresh_seeds(DEFAULT)
        yield (
            f"a gain is not shown on fresh seeds (as given: {goal_number(given)}); {search}: take more seeds or "
            "requests"
        )
    missed = [bound.text for bound in plan.bounds if not bound.met(edges.get(bound.text))]
    if missed:
        yield f"on fresh seeds the tuned arm does not meet {', '.join(missed)} with {plan.confidence:.0%} confidence"


def goal_number(value: float | None) -> str:
    """A goal, or what a bound is held to, as text."""
    return NONE if value is None else f"{value:,.4g}"
