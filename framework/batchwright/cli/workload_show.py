"""A workload in tables and plots of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from batchwright.cli.output import make_table, print_table, say
from batchwright.lab import Workload
from batchwright.lab.inspection import Distribution, Inspection

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"
_WIDTH = 64
_HEIGHT = 4
_SHOWN = 8


def show(console: Console, workload: Workload, found: Inspection) -> None:
    """Print what there is to say of a workload."""
    say(console, f"{found.name}: {found.num_requests:,} requests over {found.span_s:,.1f} s, hash {found.hash}")
    print_table(console, _facts(console, found))
    say(console, "")
    print_table(console, _lengths(console, found))
    for title, counts in (("clients", found.clients), ("classes", found.classes), ("priorities", found.priorities)):
        if counts:
            say(console, f"{title}: {_listed(counts)}")
    if found.arrivals_in_parts:
        say(console, "")
        say(console, f"arrivals a second, 0 to {found.span_s:,.1f} s")
        _plot_arrivals(console, workload)
    for title, lengths in (
        ("prompt tokens", [row.num_prompt_tokens for row in workload.rows]),
        ("output tokens", [row.num_output_tokens for row in workload.rows]),
    ):
        numbers = [n for n in lengths if n is not None]
        if numbers:
            say(console, "")
            say(console, f"{title} (requests, by powers of 2)")
            _plot_lengths(console, numbers)
    for note in found.notes:
        say(console, f"* {note}")


def _facts(console: Console, found: Inspection) -> Table:
    table = make_table(console, "", "", whole=2)
    rate = "all at once" if found.rate is None else f"{found.rate:,.2f} a second"
    if found.peak_rate is not None:
        rate += f", {found.peak_rate:,.2f} in the busiest hundredth of the time"
    table.add_row("arrivals", rate)
    if found.gap_cv is not None:
        table.add_row("burstiness", f"coefficient of variation of the gaps {found.gap_cv:.2f} (Poisson: 1)")
    reuse = "unknown: prompts are text" if found.prefix_reuse is None else f"{found.prefix_reuse:.1%} of prompt tokens"
    if found.block_reuse is not None:
        reuse += f", {found.block_reuse:.1%} of blocks"
    table.add_row("prefix reuse", f"{reuse} (cache without a bound)")
    for name, number in (("sessions", found.num_sessions), ("programs", found.num_programs)):
        if number:
            table.add_row(name, f"{number:,}")
    for name, number in (
        ("wait for others", found.num_waiting),
        ("may be aborted", found.num_aborts),
        ("declare max_tokens", found.num_declared),
        ("have a deadline", found.num_deadlines),
        ("have objectives", found.num_objectives),
        ("are predicted", found.num_predicted),
        ("bring text", found.num_texts),
    ):
        if number:
            table.add_row(name, f"{number:,} requests")
    return table


def _lengths(console: Console, found: Inspection) -> Table:
    table = make_table(console, "", "mean", "least", "median", "p90", "p99", "most", "total")
    for name, one in (("prompt", found.prompts), ("output", found.outputs), ("turns", found.turns)):
        if one is not None:
            table.add_row(name, *_numbers(one))
    return table


def _numbers(one: Distribution) -> Iterable[str]:
    yield f"{one.mean:,.1f}"
    for value in (one.low, one.p50, one.p90, one.p99, one.high, one.total):
        yield f"{value:,.0f}"


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {num:,}" for name, num in list(counts.items())[:_SHOWN]]
    left = len(counts) - len(shown)
    return ", ".join(shown) + (f", and {left:,} more" if left > 0 else "")


def _plot_arrivals(console: Console, workload: Workload) -> None:
    times = np.array([row.arrival_ns for row in workload.rows if not row.after], dtype=np.int64)
    counts, _ = np.histogram(times, bins=_WIDTH, range=(0, int(times.max())))
    rates = counts / (times.max() / 1e9 / _WIDTH)
    top = float(rates.max())
    marks = _marks(console)
    levels = np.rint(rates / top * _HEIGHT * (len(marks) - 1)).astype(int)
    for line in reversed(range(_HEIGHT)):
        filled = np.clip(levels - line * (len(marks) - 1), 0, len(marks) - 1)
        scale = f"{top:10,.1f} " if line == _HEIGHT - 1 else f"{0:10,.1f} " if line == 0 else " " * 11
        say(console, scale + "".join(marks[level] for level in filled))


def _plot_lengths(console: Console, lengths: list[int]) -> None:
    powers = np.ceil(np.log2(np.array(lengths, dtype=np.float64))).astype(int)
    first, last = int(powers.min()), int(powers.max())
    counts = [int((powers == power).sum()) for power in range(first, last + 1)]
    full = _marks(console)[-1]
    for power, count in zip(range(first, last + 1), counts, strict=True):
        bar = full * max(round(count / max(counts) * (_WIDTH - 20)), 1 if count else 0)
        say(console, f"{f'up to {2**power:,}':>18} {bar} {count:,}".rstrip())


def _marks(console: Console) -> str:
    try:
        _BLOCKS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _BLOCKS
