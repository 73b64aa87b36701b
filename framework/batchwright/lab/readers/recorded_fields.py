"""The fields of a request in a recording of traffic, each checked for what it may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchwright.lab.readers.reader import RowFields
from batchwright.lab.records import STATUSES


def checked_fields(line: RowFields) -> dict[str, Any]:
    """Fields of a :class:`~batchwright.lab.readers.recording.RecordedRequest`; others are left out.

    Args:
        line: of a recording, with ``request``.

    Raises:
        WorkloadError: one that it must have is not there, or one cannot be; with its place, and what it may be.
    """
    values = line.values["request"]
    if not isinstance(values, dict):
        line.fail(f"request is {values!r}", "an object")
    given = RowFields(line.path, line.line, line.row, values)
    checked: dict[str, Any] = {name: given.whole(name, low) for name, low in _NEEDED.items()}
    checked["status"], checked["max_tokens"] = _status(given), given.whole_or_none("max_tokens", 1)
    return checked | {name: check(given, name) for name, check in _CHECKS.items() if name in values}


def _status(given: RowFields) -> str:
    value = given.text_or_none("status")
    if value is None or value not in STATUSES:
        given.fail(f"status is {value!r}", f"one of {', '.join(STATUSES)}")
    return value


def _count(given: RowFields, name: str) -> int:
    return given.whole(name, 0)


def _when(given: RowFields, name: str) -> int | None:
    return given.whole_or_none(name, 0)


def _wholes(given: RowFields, name: str) -> list[int]:
    return list(given.wholes(name))


def _slo(given: RowFields, name: str) -> list[float | None] | None:
    value = given.values[name]
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        given.fail(f"{name} is {value!r}", "seconds to the first token and between tokens, each a number or null")
    each = RowFields(given.path, given.line, given.row, {f"{name}[{place}]": one for place, one in enumerate(value)})
    return [each.number_or_none(one, 0) for one in each.values]


_NEEDED = {"number": 1, "arrival_ns": 0, "num_prompt_tokens": 1, "num_output_tokens": 0}
_CHECKS: Mapping[str, Callable[[RowFields, str], Any]] = {
    **dict.fromkeys(("prefix_ids", "token_gaps_ns", "preempted_ns", "resumed_ns"), _wholes),
    **dict.fromkeys(("first_scheduled_ns", "finish_ns", "predicted_output_tokens"), _when),
    **dict.fromkeys(("num_cached_tokens", "num_recomputed_tokens", "num_preemptions"), _count),
    **dict.fromkeys(("finish_reason", "client_id", "slo_class", "session_id", "program_id"), RowFields.text_or_none),
    "priority": lambda given, name: given.whole(name, -(2**63)),
    "weight": lambda given, name: given.number(name, 0, above=True),
    "deadline_s": lambda given, name: given.number_or_none(name, -math.inf),
    "slo": _slo,
}
