"""The trials of a search of parameters, from its ``summary.json``: in their order, and along each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchwright.lab.designs.axis import shown
from batchwright.lab.designs.space import Space
from batchwright.lab.figures.axes import draw_limit, plain, plain_log, thin_grid
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import COLOURS, FAINT, shorten

_MANY = 8.0
"""Largest over smallest goal, from which on its axis is logarithmic."""

_PANEL_IN = 1.45


@dataclass(frozen=True, slots=True)
class _Trials:
    """The trials that have a goal.

    Attributes:
        label: of the goal, with its unit.
        lower: whether less of it is better.
        numbers, goals, met: of each trial.
        values: of each trial, by parameter.
        best: place of the best among them; None: no trial met the objectives.
        given: the goal of the arm as it was given; None: it was not tried.
    """

    label: str
    lower: bool
    numbers: Sequence[int]
    goals: Sequence[float]
    met: Sequence[bool]
    values: Sequence[Mapping[str, Any]]
    best: int | None
    given: float | None


def trial_plots(summary: Mapping[str, Any]) -> list[Plot]:
    """The figures of a search of parameters; none where no trial came to anything.

    Args:
        summary: what the ``to_json`` of a :class:`~batchwright.lab.Tuning` gave.
    """
    done = [trial for trial in summary["trials"] if trial["goal"] is not None]
    if not done:
        return []
    unit = f" ({summary['goal_unit']})" if summary["goal_unit"] in ("s", "ms") else ""
    numbers = [trial["number"] for trial in done]
    trials = _Trials(
        label=f"{summary['goal']}{unit}",
        lower=summary["better"] == "lower",
        numbers=numbers,
        goals=[trial["goal"] for trial in done],
        met=[trial["met"] for trial in done],
        values=[trial["values"] for trial in done],
        best=None if summary["best"] is None else numbers.index(summary["best"]),
        given=next((trial["goal"] for trial in done if trial["values"] == summary["given"]), None),
    )
    spaces = [Space.parse(text) for text in summary["over"]]
    columns: dict[str, Sequence[Any]] = {"trial": numbers}
    columns |= {space.name: [values[space.name] for values in trials.values] for space in spaces}
    columns |= {trials.label: trials.goals, "met": trials.met}
    said = " ".join(_said(summary, len(done), trials))
    return [
        Plot(
            name="trials",
            title="Trial by trial",
            caption=f"A mark a trial, in their order; the line is the best so far. {said}",
            alt=_in_words(trials),
            columns=columns,
            draw=partial(_draw_history, trials),
            height_in=2.1,
        ),
        Plot(
            name="parameters",
            title="What was tried",
            caption=f"A mark a trial, at the value that it had. {said}",
            alt="; ".join(_along(trials, space) for space in spaces) + ".",
            columns=columns,
            draw=partial(_draw_parameters, trials, spaces),
            height_in=0.2 + _PANEL_IN * len(spaces),
        ),
    ]


def _said(summary: Mapping[str, Any], num: int, trials: _Trials) -> list[str]:
    seeds = len(summary["seeds"])
    said = [f"The goal is the mean over {seeds} seeds." if seeds > 1 else "Each trial is of one seed."]
    if summary["slo"]:
        said.append("A filled mark meets every objective with confidence, a hollow one does not.")
    if trials.best is not None:
        said.append("The star is the best.")
    if num < len(summary["trials"]):
        said.append(f"{len(summary['trials']) - num} trials have no goal, and no mark.")
    return said


def _in_words(trials: _Trials) -> str:
    best = f"; the best is trial {trials.numbers[trials.best]}" if trials.best is not None else ""
    value = f" with {trials.goals[trials.best]:,.4g}" if trials.best is not None else ""
    given = f"; as given it is {trials.given:,.4g}" if trials.given is not None else ""
    low, high = min(trials.goals), max(trials.goals)
    return f"{trials.label} of {len(trials.goals)} trials, from {low:,.4g} to {high:,.4g}{best}{value}{given}."


def _along(trials: _Trials, space: Space) -> str:
    if trials.best is None:
        return f"{trials.label} against {space.name}"
    return f"{trials.label} against {space.name}, best at {shown(trials.values[trials.best][space.name])}"


def _draw_history(trials: _Trials, figure: Figure) -> None:
    axes = figure.subplots()
    thin_grid(axes)
    kept = [(number, goal) for number, goal, met in zip(trials.numbers, trials.goals, trials.met, strict=True) if met]
    best: list[float] = []
    for _, goal in kept:
        best.append(goal if not best else min(best[-1], goal) if trials.lower else max(best[-1], goal))
    axes.plot([number for number, _ in kept], best, color=COLOURS[0], drawstyle="steps-post", linewidth=1.0)
    _draw_marks(axes, trials, trials.numbers)
    axes.margins(x=0.04)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("Trial")
    _scale(axes, trials)


def _draw_parameters(trials: _Trials, spaces: Sequence[Space], figure: Figure) -> None:
    panels: Sequence[Axes] = figure.subplots(len(spaces), 1, squeeze=False).ravel().tolist()
    for axes, space in zip(panels, spaces, strict=True):
        thin_grid(axes)
        tried = [values[space.name] for values in trials.values]
        if space.kind == "choice":
            _draw_marks(axes, trials, [space.choices.index(value) for value in tried])
            axes.set_xticks(range(len(space.choices)), [shorten(shown(choice), 12) for choice in space.choices])
            axes.set_xlim(-0.5, len(space.choices) - 0.5)
        else:
            _draw_marks(axes, trials, tried)
            if space.log:
                axes.set_xscale("log")
                plain_log(axes.xaxis, space.low, space.high)
            else:
                axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.set_xlabel(space.name)
        _scale(axes, trials)
    figure.align_ylabels(panels)


def _draw_marks(axes: Axes, trials: _Trials, places: Sequence[float]) -> None:
    for number, (x, goal, met) in enumerate(zip(places, trials.goals, trials.met, strict=True)):
        best = number == trials.best
        axes.plot(
            [x],
            [goal],
            linestyle="",
            marker="*" if best else "o",
            markersize=9 if best else 3.5,
            color=COLOURS[1] if best else COLOURS[0],
            markerfacecolor=(COLOURS[1] if best else COLOURS[0]) if met else "white",
            markeredgecolor=FAINT if not met else None,
            zorder=5 if best else 3,
        )


def _scale(axes: Axes, trials: _Trials) -> None:
    low, high = min(trials.goals), max(trials.goals)
    if low > 0 and high / low > _MANY:
        axes.set_yscale("log")
        plain_log(axes.yaxis, low, high)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.set_ylabel(trials.label)
    if trials.given is not None:
        draw_limit(axes, trials.given, "as given", vertical=False, at_end=True)
