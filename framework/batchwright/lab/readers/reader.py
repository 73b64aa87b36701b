"""What a reader is, and how it names the place and the fault of a broken row."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow

Line = tuple[int, str]
"""A line's number in its file, from 1, and its text."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is no request to offer, given in the place of one.

    Attributes:
        why: what such rows have in common, for the notes of a run: "had no response (failures)".
    """

    why: str


Item = WorkloadRow | LeftOut | WorkloadError
"""What a reader gives for a row: a request, or why it is none, or, where it can go on with the next row, what is wrong
with it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One format of trace files.

    Attributes:
        description: half a line for error messages: the format's name and how its rows look.
        understands: whether a file whose first non-empty line is this is in the format.
        read: gives the rows of a file from its path (for messages), its first non-empty line and the lines after it;
            ``LeftOut`` for a row that is no request. A broken row is a ``WorkloadError``, raised, or given where
            reading can go on behind it.
        from_earliest: times are of a calendar, or of a counter that ran before: they are counted from the earliest.
    """

    description: str
    understands: Callable[[str], bool]
    read: Callable[[Path, Line, Iterator[Line]], Iterator[Item]]
    from_earliest: bool = False


class RowFields:
    """The fields of one row by name, and where it stands; each getter checks what it gives.

    Args:
        path: of the file.
        line: the row's line in the file, from 1.
        row: its place among the rows, from 1, header and empty lines not counted.
        values: the fields.
    """

    __slots__ = ("line", "path", "row", "values")

    def __init__(self, path: Path, line: int, row: int, values: Mapping[str, Any]) -> None:
        self.path = path
        self.line = line
        self.row = row
        self.values = values

    @property
    def place(self) -> str:
        """Where the row stands, in words."""
        return f"{self.path}, line {self.line} (row {self.row})"

    def fail(self, found: str, expected: str) -> NoReturn:
        """Raise a ``WorkloadError`` that says where, what was found and what was expected."""
        raise WorkloadError(f"{self.place}: {found}; expected {expected}")

    def whole(self, name: str, low: int) -> int:
        """A whole number of at least ``low``, written as a number or as a decimal string."""
        value = self._get(name, f"a whole number of at least {low}")
        number: int | None = None
        if isinstance(value, str):
            text = value.strip()
            if text.isascii() and text.removeprefix("-").isdigit():
                number = int(text)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        if number is None or number < low:
            self.fail(f"{name} is {value!r}", f"a whole number of at least {low}")
        return number

    def whole_or_none(self, name: str, low: int) -> int | None:
        """``whole``, or None where the field is absent or null."""
        return None if self.values.get(name) is None else self.whole(name, low)

    def number(self, name: str, low: float, *, above: bool = False) -> float:
        """A finite number of at least ``low``, or above it."""
        expected = f"a finite number {'above' if above else 'of at least'} {low:g}"
        value = self._get(name, expected)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(f"{name} is {value!r}", expected)
        if not math.isfinite(value) or value < low or (above and value == low):
            self.fail(f"{name} is {value!r}", expected)
        return float(value)

    def decimal(self, name: str, low: float) -> float:
        """``number``, written in a CSV cell."""
        expected = f"a finite number of at least {low:g}"
        text = str(self._get(name, expected)).strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= low):
            self.fail(f"{name} is {text!r}", expected)
        return value

    def number_or_none(self, name: str, low: float, *, above: bool = False) -> float | None:
        """``number``, or None where the field is absent or null."""
        return None if self.values.get(name) is None else self.number(name, low, above=above)

    def text_or_none(self, name: str) -> str | None:
        """A name, written as a non-empty string or a whole number; None where the field is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value:
            self.fail(f"{name} is {value!r}", "a non-empty string or a whole number")
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0."""
        expected = "a list of whole numbers of at least 0"
        value = self._get(name, expected)
        if not isinstance(value, list):
            self.fail(f"{name} is {value!r}", expected)
        for item in value:
            if not isinstance(item, int) or isinstance(item, bool) or item < 0:
                self.fail(f"{name} holds {item!r}", expected)
        return tuple(value)

    def _get(self, name: str, expected: str) -> Any:
        if name not in self.values:
            self.fail(f"there is no {name}", expected)
        return self.values[name]


MakeRow = Callable[[RowFields], Item]


def json_rows(path: Path, first: Line, lines: Iterator[Line], make: MakeRow) -> Iterator[Item]:
    """What a function makes of each row of a JSONL file: one JSON object a line; empty lines are passed over.

    A line that is no JSON object, or of which the function raises a ``WorkloadError``, gives that error.
    """
    row = 0
    for number, line in _chain(first, lines):
        if not line.strip():
            continue
        row += 1
        try:
            yield make(RowFields(path, number, row, _object(path, number, row, line)))
        except WorkloadError as error:
            yield error


def _object(path: Path, number: int, row: int, line: str) -> dict[str, Any]:
    fields = RowFields(path, number, row, {})
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        fields.fail(f"not JSON ({error.msg} at column {error.colno})", "one JSON object a line")
    if not isinstance(values, dict):
        fields.fail(f"a JSON {type(values).__name__}", "one JSON object a line")
    return values


def csv_rows(path: Path, first: Line, lines: Iterator[Line], make: MakeRow) -> Iterator[Item]:
    """What a function makes of each row of a CSV file, whose first line is its header; empty lines are passed over.

    A row of another width, or of which the function raises a ``WorkloadError``, gives that error.
    """
    header = [name.strip() for name in next(csv.reader([first[1]]))]
    row = 0
    for number, line in lines:
        if not line.strip():
            continue
        row += 1
        cells = _cells(line)
        fields = RowFields(path, number, row, dict(zip(header, cells, strict=False)))
        try:
            if len(cells) != len(header):
                fields.fail(f"{len(cells)} fields", f"{len(header)}: {','.join(header)}")
            yield make(fields)
        except WorkloadError as error:
            yield error


def _cells(line: str) -> list[str]:
    """What :mod:`csv` makes of a line; where nothing is quoted that is what stands between commas."""
    plain = line.rstrip("\r\n")
    return plain.split(",") if '"' not in plain and "\r" not in plain else next(csv.reader([line]))


def has_columns(line: str, columns: tuple[str, ...]) -> bool:
    """Whether a line is the header of a CSV file with these columns."""
    return set(columns) <= {name.strip() for name in line.split(",")}


def json_keys(line: str) -> frozenset[str]:
    """The keys of the JSON object in a line; none where it is not one."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return frozenset()
    return frozenset(value) if isinstance(value, dict) else frozenset()


def _chain(first: Line, lines: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from lines
