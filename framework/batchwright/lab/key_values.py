"""``key=value,key=value``, as workloads are described on a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from batchwright.errors import WorkloadError, did_you_mean

_COMMA = re.compile(r",(?![^()]*\))")  # not inside parentheses


def key_values(
    text: str, what: str, example: str, readers: Mapping[str, Callable[[str, str], object]]
) -> dict[str, Any]:
    """Read ``key=value,...``.

    Args:
        text: may be empty.
        what: is described so, for errors.
        example: of it.
        readers: of each key, what makes a value of its text; called with a name for errors, and the text.

    Raises:
        WorkloadError: a key is unknown or given twice, or a value is out of its range.
    """
    values: dict[str, Any] = {}
    for item in _COMMA.split(text) if text.strip() else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise WorkloadError(f"{item!r} in {what} is not key=value; for example {example}")
        if key not in readers:
            raise WorkloadError(f"{what} has no {key!r}; {did_you_mean(key, readers)}")
        if key in values:
            raise WorkloadError(f"{what} gives {key!r} twice; give it once")
        values[key] = readers[key](f"{key} of {what}", value)
    return values
