"""A workload with some of its fields changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from batchwright.errors import ConfigError, WorkloadError
from batchwright.lab.loading import AND, load_workload
from batchwright.lab.synthetic import PREFIX as SYNTHETIC
from batchwright.lab.synthetic import SyntheticSpec
from batchwright.lab.workload import Workload

OF_LOAD = ("speedup", "rate", "concurrency", "limit")
"""What can be changed of any workload."""

SYNTHETIC_KEYS = tuple(f.name for f in fields(SyntheticSpec) if f.name not in ("rate", "seed"))
_COMMA = re.compile(r",(?![^()]*\))")


def is_synthetic(workload: Workload) -> bool:
    """Whether a workload comes from one specification of a synthetic one."""
    return workload.source.startswith(SYNTHETIC) and AND not in workload.source


def with_load(workload: Workload, values: Mapping[str, Any]) -> Workload:
    """A workload with some of its fields changed.

    A synthetic one is drawn anew from its specification, in as far as it is as it was drawn, but for its speedup, its
    number of requests and objectives that all of them share.

    Raises:
        ConfigError: a key of synthetic workloads is changed of one that is none, or none any more.
        WorkloadError: a value is out of its range.
    """
    keys = {name: value for name, value in values.items() if name in SYNTHETIC_KEYS}
    drawn = _drawn_anew(workload, {}) if is_synthetic(workload) else None
    as_drawn = drawn is not None and drawn.faster(workload.speedup).rows == workload.rows
    if keys and not as_drawn:
        raise ConfigError(
            f"{', '.join(keys)}: workload {workload.name} is no synthetic one as it was drawn; of others there are "
            f"{', '.join(OF_LOAD)}"
        )
    speedup = _number("speedup", values.get("speedup", workload.speedup))
    if as_drawn:
        workload = _drawn_anew(workload, keys)
    if "limit" in values:
        workload = workload.first(values["limit"])
    if "concurrency" in values:
        workload = workload.closed(values["concurrency"])
    if "rate" in values:
        return workload.at_rate(_number("rate", values["rate"]))
    return workload.faster(speedup / workload.speedup)


def _drawn_anew(workload: Workload, keys: Mapping[str, Any]) -> Workload:
    """Drawn from its specification with these keys changed, at its own speed."""
    before = SyntheticSpec.parse(workload.source)
    drawn = load_workload(synthetic_with(workload.source, keys))
    if "n" not in keys and len(workload) < before.n:  # only the first were taken
        drawn = drawn.first(len(workload))
    slos = {row.slo for row in workload.rows}
    if len(slos) == 1 and (slo := slos.pop()) is not None:
        drawn = drawn.with_slo(slo)
    return replace(drawn, concurrency=workload.concurrency, too_long=workload.too_long)


def synthetic_with(source: str, keys: Mapping[str, Any]) -> str:
    """The specification of a synthetic workload with some keys changed."""
    body = source.removeprefix(SYNTHETIC)
    items = [item for item in _COMMA.split(body) if item.strip() and item.partition("=")[0].strip() not in keys]
    return SYNTHETIC + ",".join([*items, *(f"{key}={value}" for key, value in keys.items())])


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WorkloadError(f"{name} is {value!r}; expected a number")
    return value
