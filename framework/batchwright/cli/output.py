"""Printing: tables and sentences on stdout, progress on stderr; plain where nobody watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchwright.errors import ConfigError

RUNS = "runs"
"""The label under which the lab counts whole runs."""

ReportProgress = Callable[[str, int, int], None]
"""Told now and then: a label, how many are done, how many there are in all."""


PROGRESS = "BATCHWRIGHT_PROGRESS"
"""In the environment: ``lines`` prints progress where stderr is no terminal."""

_PAUSE_S = 2.0


def make_console(quiet: bool = False) -> Console:
    """Standard output: 80 columns and no styles where it is not a terminal."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, quiet=quiet)


def say(console: Console, sentence: str) -> None:
    """A line of prose; the terminal wraps it, and a file gets it whole."""
    console.print(Text(sentence), soft_wrap=True)


def make_table(console: Console, *headers: str, whole: int = 1) -> Table:
    """A table: ruled on a terminal, bare columns elsewhere.

    Args:
        console: where it will be printed.
        headers: of the columns.
        whole: how many leading columns are never broken.
    """
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    for place, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=place < whole)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table; without the padding at the ends of lines where it is not a terminal."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        say(console, line.rstrip())


def check_writable(path: Path | None, option: str) -> None:
    """Before a long run: whether its results can be written.

    Raises:
        ConfigError: they cannot, and why.
    """
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{option} {path}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: it cannot be written; name another file")


class _Lines:
    """Progress as lines on stderr, a few seconds apart."""

    def __init__(self, what: str) -> None:
        """Says at once what begins."""
        self._ended: set[str] = set()
        self._say(f"{what} ...")

    def __call__(self, label: str, done: int, total: int) -> None:
        """As ``ReportProgress``: told when some time has passed, and when a label is done."""
        has_ended = done >= total
        if (has_ended and label not in self._ended) or (not has_ended and time.monotonic() >= self._next):
            self._say(f"{label}: {done} of {total}")
        if has_ended:
            self._ended.add(label)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self._next = time.monotonic() + _PAUSE_S


@contextmanager
def show_progress(quiet: bool, what: str = "starting") -> Iterator[ReportProgress | None]:
    """A progress bar on stderr for each label that reports; where stderr is not a terminal nothing, or lines.

    Where whole runs are counted, their bar stands first and stays, and those of single runs go when they are done.
    With ``BATCHWRIGHT_PROGRESS=lines`` in the environment there is a line each two seconds where no terminal is.

    Args:
        quiet: nothing at all.
        what: shown until something reports.
    """
    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield None if quiet or os.environ.get(PROGRESS) != "lines" else _Lines(what)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        first = progress.add_task(what, total=None)

        def report(label: str, done: int, total: int) -> None:
            if RUNS in tasks and label != RUNS and done >= total:
                if label in tasks:
                    progress.remove_task(tasks.pop(label))
                return
            if label not in tasks:
                progress.remove_task(first) if not tasks else None
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done, total=total)

        yield report
