"""What two backends say of the same arms, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.agree import AGREE, ALIKE, NEITHER, ONLY_FIRST, ONLY_SECOND, OPPOSITE, Agreement, BackendsCompared
from batchwright.lab.metrics import Metric
from batchwright.lab.printing import as_text, bullets
from batchwright.lab.shown import shown_metrics
from batchwright.lab.verdict import NO_DIFFERENCE, NOT_SHOWN, Verdict
from batchwright.lab.wording import in_percent, percent

_STYLES = {AGREE: "green", OPPOSITE: "red"}
_NONE = "-"


def format_agreement(compared: BackendsCompared, width: int = 80) -> str:
    """The report as plain text.

    Args:
        compared: one A/B on two backends.
        width: columns to fit into.
    """
    return as_text(lambda console: print_agreement(compared, console), width)


def print_agreement(compared: BackendsCompared, console: Console | None = None) -> None:
    """Print the report: with colour on a terminal, as plain text elsewhere.

    Args:
        compared: one A/B on two backends.
        console: where to; standard output by default.
    """
    console = console if console is not None else Console(highlight=False)
    first = compared.comparisons[0]
    base = first.runs[0]
    parts: list[RenderableType] = [_header(compared)]
    for arm in first.arms[1:]:
        found = [a for a in compared.agreements if a.arm == arm]
        title = Text(f"{arm} - {base.arm}", style="bold")
        parts += [Padding(title, (1, 0, 0, 0)), _table(compared.backends, found, first.metrics.metrics)]
    runs = "own run" if len(first.seeds) == 1 else f"own {len(first.seeds)} seeds"
    note = (
        f"Differences in percent of {base.arm}, with intervals of each backend's {runs}, which hold all together with "
        f"{first.family.level:.0%}."
    )
    parts.append(Padding(Text(note, style="dim"), (1, 0, 0, 0)))
    console.print(Group(*parts, bullets(_closing(compared))))


def _header(compared: BackendsCompared) -> Table:
    run = compared.comparisons[0].runs[0]
    workload = run.workload
    grid = Table.grid(padding=(0, 1))
    name, size, digest = workload.get("name", "?"), workload.get("num_requests", "?"), workload.get("hash", "?")
    grid.add_row(Text("workload", style="dim"), Text(f"{name} ({size} requests, hash {digest})"))
    grid.add_row(Text("backends", style="dim"), Text(" and ".join(compared.backends)))
    return grid


def _table(backends: tuple[str, str], agreements: list[Agreement], metrics: Mapping[str, Metric]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    for backend in backends:
        table.add_column(Text(backend), justify="right", overflow="fold")
    table.add_column("sign")
    table.add_column("intervals")
    shown = {metric.name for metric in shown_metrics(metrics)}
    for agreement in agreements:
        if agreement.metric not in shown or agreement.sign == ALIKE:
            continue
        metric = metrics[agreement.metric]
        table.add_row(
            Text(metric.label),
            *(Text(_difference(metric, verdict)) for verdict in agreement.verdicts),
            _sign(agreement, backends),
            Text({True: "overlap", False: "apart", None: _NONE}[agreement.overlap]),
        )
    return table


def _sign(agreement: Agreement, backends: tuple[str, str]) -> Text:
    """The word; where only one backend shows something, which; in parentheses where chance may have made it."""
    kinds = [backend.partition(":")[0] for backend in backends]
    if kinds[0] == kinds[1]:
        kinds = ["first", "second"]
    words = {ONLY_FIRST: f"only {kinds[0]}", ONLY_SECOND: f"only {kinds[1]}", NEITHER: _NONE}
    said = words.get(agreement.sign, agreement.sign)
    if not agreement.tested:
        return Text(f"({said})", style="dim")
    return Text(said, style=_STYLES.get(agreement.sign, ""))


def _difference(metric: Metric, verdict: Verdict) -> str:
    """In percent of the first arm where that says something, else as it is; of a difference not shown, the interval."""
    if verdict.words == NO_DIFFERENCE or verdict.difference is None:
        return NO_DIFFERENCE
    if verdict.relative is None or not in_percent(metric, verdict):
        unit = " pp" if metric.is_share else ""
        return f"{verdict.difference * metric.scale:+,.{metric.decimals}f}{unit}"
    interval = verdict.interval
    if interval is None or interval.relative_low is None or interval.relative_high is None:
        return f"{percent(verdict.relative)}%"
    low, high = percent(interval.relative_low), percent(interval.relative_high)
    return f"[{low}%, {high}%]" if verdict.words == NOT_SHOWN else f"{percent(verdict.relative)}% [{low}, {high}]"


def _closing(compared: BackendsCompared) -> Iterator[str]:
    shown = [a for a in compared.agreements if a.tested and a.sign in (AGREE, OPPOSITE)]
    one = [a for a in compared.agreements if a.tested and a.sign in (ONLY_FIRST, ONLY_SECOND)]
    if shown:
        agreed = sum(a.sign == AGREE for a in shown)
        near = sum(a.overlap is True for a in shown)
        yield (
            f"{len(shown)} differences are shown on both backends: the sign agrees in {agreed}, the intervals overlap "
            f"in {near}; {len(one)} are shown on one backend only"
        )
    else:
        yield f"no difference is shown on both backends; {len(one)} are shown on one of them"
    metrics = compared.comparisons[0].metrics.metrics
    for agreement in compared.opposite:
        yield f"{metrics[agreement.metric].label}: the backends contradict each other on {agreement.arm}"
    yield from compared.notes
    for backend, comparison in zip(compared.backends, compared.comparisons, strict=True):
        for line in comparison.closing:
            yield f"{backend}: {line}"
