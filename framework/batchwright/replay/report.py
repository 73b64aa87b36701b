"""What a replay found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.replay.case import Fields

_WIDTH = 56
_MISSING = "-"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step of a case in which recorded and replayed decisions differ.

    Attributes:
        file, line, case: where the case stands.
        step: place of the step among the recorded ones, from 0.
        expected: fields as recorded.
        actual: fields as replayed.
        error: what the replay raised there, in words, or None.
    """

    file: str
    line: int
    case: str
    step: int
    expected: Fields
    actual: Fields
    error: str | None = None

    @property
    def fields(self) -> list[str]:
        """Names of the fields that differ."""
        names = list(dict.fromkeys((*self.expected, *self.actual)))
        return [n for n in names if self.expected.get(n, _MISSING) != self.actual.get(n, _MISSING)]

    def __str__(self) -> str:
        head = f"{self.file}, line {self.line}, case {self.case!r}, step {self.step}"
        if self.error is not None:
            return f"{head}: the replay raised {self.error}"
        differing = self.fields
        rows = [f"{head}: {', '.join(differing)} differ{'s' if len(differing) == 1 else ''}"]
        names = list(dict.fromkeys((*self.expected, *self.actual)))
        pad = max(len(n) for n in names)
        rows.append(f"  {'':{pad}}  {'recorded':{_WIDTH}}  replayed")
        for name in names:
            left, right = (_wrap(side.get(name, _MISSING)) for side in (self.expected, self.actual))
            for i in range(max(len(left), len(right))):
                mark = "*" if name in differing and i == 0 else " "
                label = name if i == 0 else ""
                one, two = (side[i] if i < len(side) else "" for side in (left, right))
                rows.append(f"{mark} {label:{pad}}  {one:{_WIDTH}}  {two}".rstrip())
        return "\n".join(rows)


def _wrap(value: Any) -> list[str]:
    """A value in lines of the column's width, broken between items."""
    if not isinstance(value, list):
        return [str(value)]
    lines = [""]
    for item in value:
        text = f"[{', '.join(map(str, item))}]" if isinstance(item, list) else str(item)
        if lines[-1] and len(lines[-1]) + len(text) + 1 > _WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {text}".lstrip()
    return lines if value else ["(none)"]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The outcome of a replay.

    Attributes:
        file: what was replayed.
        num_cases: cases in it.
        num_steps: steps compared, those that differ included.
        differences: one for each case that differs: its first step that does.
    """

    file: str
    num_cases: int
    num_steps: int
    differences: Sequence[Difference]

    @property
    def agrees(self) -> bool:
        """Whether every field of every step is as recorded."""
        return not self.differences

    def __str__(self) -> str:
        if self.agrees:
            return f"{self.file}: all {self.num_cases} cases agree, {self.num_steps} steps"
        many = f"{self.file}: {len(self.differences)} of {self.num_cases} cases differ; the first:"
        return f"{many}\n{self.differences[0]}"
