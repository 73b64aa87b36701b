"""Tables and code as Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *(list(row) for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """A value as code; nothing for nothing."""
    return f"`{text}`" if text else ""


def seconds(value: float) -> str:
    """Seconds, or milliseconds where that reads better."""
    return f"{value:.4g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
