"""What reports on a terminal have in common."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text


def as_text(print_to: Callable[[Console], None], width: int) -> str:
    """What something prints, as plain text.

    Args:
        print_to: prints it to a console.
        width: columns to fit into.
    """
    file = io.StringIO()
    print_to(Console(file=file, width=width, force_terminal=False, color_system=None, legacy_windows=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def bullets(lines: Iterable[str]) -> Table:
    """Sentences below a table, a star before each."""
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("*", Text(line))
    return grid


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and values above a table."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def bare_table(title: str | None = None) -> Table:
    """A table without lines."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.title_style = "bold"
    return table
