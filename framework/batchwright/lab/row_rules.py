"""Rules that give rows priorities, deadlines, objectives, clients and so on: ``CONDITIONS: FIELD=VALUE, ...``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from batchwright.errors import WorkloadError, did_you_mean
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload
from batchwright.request import SLO

EXAMPLE = "client_id=c0, num_prompt_tokens>2000: priority=1, slo.ttft_s=0.5"
NAMES = ("client_id", "session_id", "program_id", "slo_class", "row_id")
NUMBERS = ("arrival_s", "num_prompt_tokens", "num_output_tokens", "max_tokens", "priority", "weight", "turn")
SHARE = "share"
CONDITIONS = (*NAMES, *NUMBERS, SHARE)
_PART = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _above_0(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError
    return value


def _from_0(text: str) -> float:
    value = float(text)
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError
    return value


def _whole_1(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _whole_0(text: str) -> int:
    if int(text) < 0:
        raise ValueError
    return int(text)


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


_ABOVE = "a number above 0"
FIELDS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "priority": (int, "a whole number; lower goes first"),
    "client_id": (_name, "a name"),
    "weight": (_above_0, _ABOVE),
    "deadline_s": (_above_0, _ABOVE),
    "slo.ttft_s": (_above_0, _ABOVE),
    "slo.tpot_s": (_above_0, _ABOVE),
    "slo_class": (_name, "a name"),
    "max_tokens": (_whole_1, "a whole number of at least 1"),
    "predicted_output_tokens": (_whole_0, "a whole number of at least 0"),
    "think_s": (_from_0, "a number of at least 0"),
    "abort_after_s": (_above_0, _ABOVE),
    "abort_after_tokens": (_whole_1, "a whole number of at least 1"),
}
"""What rules can set: what reads a value, and what is expected of it. ``none`` takes a value away."""

_WITHOUT = {"priority": 0, "weight": 1.0, "think_s": 0.0}


@dataclass(frozen=True, slots=True)
class RowRule:
    """What some rows get.

    Attributes:
        text: as it was written.
        conditions: name, sign and value; a row must meet all of them.
        values: by field.
    """

    text: str
    conditions: tuple[tuple[str, str, Any], ...]
    values: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> RowRule:
        """Read ``client_id=c0, num_prompt_tokens>2000: priority=1, slo.ttft_s=0.5``; ``*`` is every row.

        Raises:
            WorkloadError: it is no rule, a name is unknown, or a value is out of its range.
        """
        head, colon, tail = text.partition(":")
        if not colon or not tail.strip() or not head.strip():
            raise WorkloadError(f"rule {text!r} is not CONDITIONS: FIELD=VALUE, ...; for example {EXAMPLE}")
        conditions = () if head.strip() == "*" else tuple(_condition(text, part) for part in head.split(","))
        values: dict[str, Any] = {}
        for part in tail.split(","):
            name, value = _value(text, part)
            if name in values:
                raise WorkloadError(f"rule {text!r} sets {name} twice; set it once")
            values[name] = value
        return cls(text, conditions, values)

    def fits(self, place: int, row: WorkloadRow, turn: int) -> bool:
        """Whether it is for the row that stands at ``place``, as that turn of its session."""
        return all(self._meets(place, row, turn, *condition) for condition in self.conditions)

    def _meets(self, place: int, row: WorkloadRow, turn: int, name: str, sign: str, wanted: Any) -> bool:
        if name == SHARE:  # of rows, at random but always the same ones
            return bool(xxh3_64_intdigest(f"{place} {self.text}".encode()) < wanted * 2**64)
        found = row.arrival_ns / 1e9 if name == "arrival_s" else turn if name == "turn" else getattr(row, name)
        if name in NAMES:
            matches = found is not None and fnmatchcase(str(found), wanted)
            return matches if sign == "=" else not matches
        return found is not None and bool(_COMPARE[sign](found, wanted))

    def applied(self, row: WorkloadRow) -> WorkloadRow:
        """The row with the rule's values."""
        changes: dict[str, Any] = {}
        slo = row.slo if row.slo is not None else SLO()
        for name, value in self.values.items():
            if name.startswith("slo."):
                slo = replace(slo, **{name.removeprefix("slo."): value})
                changes["slo"] = None if slo == SLO() else slo
            else:
                changes[name] = _WITHOUT.get(name) if value is None else value
        return replace(row, **changes)


def _condition(rule: str, part: str) -> tuple[str, str, Any]:
    match = _PART.fullmatch(part)
    if match is None:
        raise WorkloadError(f"rule {rule!r}: {part.strip()!r} is no condition; for example {EXAMPLE}")
    name, sign, text = match.groups()
    if name not in CONDITIONS:
        raise WorkloadError(f"rule {rule!r}: rows have no {name!r} to look at; {did_you_mean(name, CONDITIONS)}")
    if name in NAMES:
        if sign not in ("=", "!="):
            raise WorkloadError(f"rule {rule!r}: {name} is a name, and {sign} compares numbers; use = or !=")
        return name, sign, text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or (name == SHARE and not (0 <= value <= 1 and sign == "=")):
        expected = "share=X with X from 0 to 1" if name == SHARE else "a number"
        raise WorkloadError(f"rule {rule!r}: {name}{sign}{text}; expected {expected}")
    return name, sign, value


def _value(rule: str, part: str) -> tuple[str, Any]:
    name, equals, text = (piece.strip() for piece in part.partition("="))
    if not equals:
        raise WorkloadError(f"rule {rule!r}: {part.strip()!r} is not FIELD=VALUE; for example {EXAMPLE}")
    if name not in FIELDS:
        raise WorkloadError(f"rule {rule!r}: {name!r} cannot be set; {did_you_mean(name, FIELDS)}")
    if text == "none":
        return name, None
    read, expected = FIELDS[name]
    try:
        return name, read(text)
    except ValueError:
        raise WorkloadError(f"rule {rule!r}: {name} is {text!r}; expected {expected}, or none") from None


def read_rules(texts: Iterable[str]) -> list[RowRule]:
    """Rules as they are given on a command line: one each, or ``@FILE`` with one a line (``#`` begins a comment).

    Raises:
        WorkloadError: a rule is wrong, or a file cannot be read.
    """
    rules: list[RowRule] = []
    for text in texts:
        if not text.startswith("@"):
            rules.append(RowRule.parse(text))
            continue
        path = Path(text[1:])
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(f"cannot read the rules in {path}: {error}") from None
        for number, line in enumerate(lines, start=1):
            rule = line.partition("#")[0].strip()
            if rule:
                try:
                    rules.append(RowRule.parse(rule))
                except WorkloadError as error:
                    raise WorkloadError(f"{path}, line {number}: {error}") from None
    return rules


def with_rules(workload: Workload, rules: Iterable[RowRule | str]) -> Workload:
    """The same requests, with what the rules that fit them give; a later rule wins over an earlier one.

    Raises:
        WorkloadError: a rule is wrong, or its values do not go together with those of a row.
    """
    parsed = [rule if isinstance(rule, RowRule) else RowRule.parse(rule) for rule in rules]
    if not parsed:
        return workload
    turns: dict[str, int] = {}
    rows: list[WorkloadRow] = []
    for place, row in enumerate(workload.held()):
        turn = 1
        if row.session_id is not None:
            turn = turns[row.session_id] = turns.get(row.session_id, 0) + 1
        for rule in parsed:
            if rule.fits(place, row, turn):
                row = rule.applied(row)
        rows.append(row)
    return replace(workload, rows=tuple(rows))
