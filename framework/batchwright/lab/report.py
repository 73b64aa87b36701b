"""A comparison as text: a header, a table with a column an arm, and what the load could show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.compare import Comparison
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.printing import as_text, bullets
from batchwright.lab.run_record import RunRecord
from batchwright.lab.settings import backend_in_words, differences_in_words, one_of_all, value_in_words
from batchwright.lab.shown import shown_metrics
from batchwright.lab.verdict import BETTER, NOT_TESTED, WORSE, Verdict
from batchwright.lab.window import measured
from batchwright.lab.wording import number, size
from batchwright.predictor import NO_PREDICTIONS

OF_REPLICAS = {
    "Requests": Metric("num_requests", "Requests", None, 0),
    "Busy (%)": Metric("busy", "Busy (%)", None, 1, 100),
    "Hits (%)": METRICS["cache_hit_rate"],
    "Mean TTFT (ms)": METRICS["mean_ttft_ms"],
    "P99 TTFT (ms)": METRICS["p99_ttft_ms"],
    "P99 ITL (ms)": METRICS["p99_itl_ms"],
    "Preempt.": METRICS["num_preemptions"],
}
"""Columns of the table of replicas."""

OF_CLASSES = {
    "Requests": Metric("num_requests", "Requests", None, 0),
    "Attained (%)": METRICS["slo_attainment"],
    "Mean TTFT (ms)": METRICS["mean_ttft_ms"],
    "P99 TTFT (ms)": METRICS["p99_ttft_ms"],
    "Mean TPOT (ms)": METRICS["mean_tpot_ms"],
    "P99 TPOT (ms)": METRICS["p99_tpot_ms"],
}
"""Columns of the table of classes of requests."""

LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_residents",
    "max_model_len",
    "num_blocks",
    "block_size",
)
"""Sizes of the header, as far as somebody gave them and arms share them."""

_IF_NOT_ZERO = {"num_aborted", "num_tpot_undefined"}
_STYLES = {BETTER: "green", WORSE: "red"}


def format_report(comparison: Comparison, width: int = 80, metrics: Sequence[Metric] | None = None) -> str:
    """The report as plain text.

    Args:
        comparison: of one arm or more.
        width: columns to fit into.
        metrics: rows of the table; None: those that tell most.
    """
    return as_text(lambda console: print_report(comparison, console, metrics), width)


def print_report(
    comparison: Comparison, console: Console | None = None, metrics: Sequence[Metric] | None = None
) -> None:
    """Print the report: with colour on a terminal, as plain text elsewhere.

    Args:
        comparison: of one arm or more.
        console: where to; standard output by default.
        metrics: rows of the table; None: those that tell most.
    """
    console = console if console is not None else Console(highlight=False)
    table = _table(comparison, metrics)
    parts: list[RenderableType] = [*_header(comparison), table, *_classes(comparison), *_replicas(comparison)]
    if comparison.verdicts:
        parts.append(Text(comparison.method, style="dim"))
    console.print(Group(*parts, bullets(comparison.closing)))


def _header(comparison: Comparison) -> Iterator[RenderableType]:
    runs = [next(iter(comparison.of(arm).values())) for arm in comparison.arms]
    engines = [run for run in runs if not run.is_endpoint]
    limits = _limits(engines)
    predictions = [run.predictions for run in runs]
    grid = Table.grid(padding=(0, 1))
    for name, value in (
        ("workload", _workload(comparison)),
        *([("seeds", _seeds(comparison))] if len(comparison.seeds) > 1 else []),
        *([("counted", counted(runs[0]))] if runs[0].window is not None else []),
        ("backend", backend_in_words(runs)),
        ("max_tokens", one_of_all([run.declared_max_tokens for run in runs], runs)),
        *([("predicted", one_of_all(predictions, runs))] if set(predictions) != {NO_PREDICTIONS} else []),
        *([("fleet", one_of_all([_fleet(run) for run in runs], runs))] if any(map(_has_router, runs)) else []),
        *([("limits", limits)] if limits else []),
        *([("leapt", one_of_all([_leapt(run) for run in runs], runs))] if any(run.num_leapt for run in runs) else []),
    ):
        grid.add_row(Text(name, style="dim"), Text(value))
    yield grid
    differing = differences_in_words(runs)
    if differing:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(Text("arms differ in"))
        for run in runs:
            table.add_column(_heading(run.arm), overflow="fold")
        for name, values in differing.items():
            table.add_row(Text(name), *map(Text, values))
        yield Padding(table, (1, 0, 0, 0))


def _workload(comparison: Comparison) -> str:
    base = comparison.of(comparison.arms[0])
    workload = next(iter(base.values())).workload
    speedup = f", --speedup {workload['speedup']:g}" if workload.get("speedup", 1) != 1 else ""
    found = {str(run.workload.get("hash", "?")) for run in base.values()}
    which = f"hash {found.pop()}" if len(found) == 1 else "drawn anew for each seed"
    numbers = [len(run.requests) for run in base.values()]
    requests = f"{numbers[0]}" if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)}"
    return f"{workload.get('name', '?')} ({requests} requests{speedup}, {which})"


def _seeds(comparison: Comparison) -> str:
    seeds = comparison.seeds
    in_a_row = seeds == tuple(range(seeds[0], seeds[0] + len(seeds)))
    which = f"{seeds[0]} to {seeds[-1]}" if in_a_row and len(seeds) > 2 else ", ".join(map(str, seeds))
    return f"{len(seeds)} ({which}); figures are means over them"


def counted(run: RunRecord) -> str:
    """How many requests of a run with a window count, and which do not."""
    left = len(measured(run).requests)
    return f"{left} of {len(run.requests)} requests: {run.window} are left out"


def _limits(engines: Sequence[RunRecord]) -> str:
    """The sizes that somebody gave and arms share; all of them where it is not known what was given."""
    if not engines:
        return ""
    first = engines[0].limits
    return ", ".join(
        f"{name} {value_in_words(getattr(first, name))}"
        for name in LIMITS
        if all(getattr(run.limits, name) == getattr(first, name) for run in engines)
        and any(run.given is None or name in run.given for run in engines)
    )


def _has_router(run: RunRecord) -> bool:
    return run.settings.get("router") is not None


def _fleet(run: RunRecord) -> str:
    if not _has_router(run):
        return "one engine"
    router = dict(run.settings["router"])
    name = router.pop("use")
    said = f" ({', '.join(f'{key}={value}' for key, value in router.items())})" if router else ""
    return f"{run.num_replicas} replicas, router {name}{said}"


def _leapt(run: RunRecord) -> str:
    """How many steps a simulator took several at once."""
    return f"{run.num_leapt / len(run.steps):.0%} of {len(run.steps):,} steps" if run.steps else "no step"


def _table(comparison: Comparison, chosen: Sequence[Metric] | None) -> RenderableType:
    arms = comparison.arms
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    for arm in arms:
        table.add_column(_heading(arm), justify="right", overflow="fold")
    verdicts = {(v.arm, v.metric): v for v in comparison.verdicts}
    pair = len(arms) == 2
    if pair:
        table.add_column(Text("difference [interval]"), overflow="fold")
    for metric in shown_metrics(comparison.metrics.metrics) if chosen is None else chosen:
        name = metric.name
        values = [comparison.summaries[arm][name] for arm in arms]
        nothing = (name in _IF_NOT_ZERO and not any(values)) or all(v is None for v in values)
        if nothing and chosen is None:
            continue
        found = [verdicts.get((arm, name)) for arm in arms]
        cells = [Text(number(metric, value)) for value in values]
        if pair:
            cells.append(_said(metric, found[1]))
        else:
            for cell, verdict in zip(cells, found, strict=True):
                if verdict is not None and verdict.difference:
                    cell.append("\n").append_text(_said(metric, verdict, interval=False))
        table.add_row(Text(comparison.label(metric)), *cells)
    return Padding(table, (1, 0, 1, 0))


def _classes(comparison: Comparison) -> Iterator[RenderableType]:
    """Of each arm whose requests are of several classes, a row for each."""
    for arm, classes in comparison.classes.items():
        yield _parts(f"classes of {arm}", OF_CLASSES, classes.items())


def _replicas(comparison: Comparison) -> Iterator[RenderableType]:
    """Of each arm with several replicas, a row for each."""
    for arm, summaries in comparison.replicas.items():
        yield _parts(f"replicas of {arm}", OF_REPLICAS, ((str(place), one) for place, one in enumerate(summaries)))


def _parts(
    heading: str, columns: Mapping[str, Metric], rows: Iterable[tuple[str, Mapping[str, Any]]]
) -> RenderableType:
    """The parts of an arm, a row for each."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(Text(heading), overflow="fold")
    for column in columns:
        table.add_column(Text(column.replace(" (", "\n(")), justify="right")
    for name, summary in rows:
        table.add_row(Text(name), *(Text(number(metric, summary[metric.name])) for metric in columns.values()))
    return Padding(table, (0, 0, 1, 0))


def _heading(arm: str) -> Text:
    """An arm's name, broken at its parameters where it is longer than the numbers under it."""
    return Text(re.sub(r"(?<=[:,])", "\n", arm) if len(arm) > 14 else arm)


def _said(metric: Metric, verdict: Verdict | None, *, interval: bool = True) -> Text:
    """Size, interval and verdict."""
    said = Text(size(metric, verdict, interval=interval))
    if verdict is not None and verdict.difference is not None and verdict.words != NOT_TESTED:
        said.append(" " if said.plain else "").append(verdict.words, style=_STYLES.get(verdict.words, ""))
    return said
