"""Objectives of a whole run: ``ttft_p99<1.0,itl_p99<0.05,goodput>0.95``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.designs.margin import mean_margin
from batchwright.lab.designs.measure import FINISHED, GOODPUT, Measure, parse_measure
from batchwright.lab.metrics import METRICS, Metric

EXAMPLE = "ttft_p99<1.0,itl_p99<0.05,goodput>0.95"
LONGEST_S = 300.0
"""A bound on a latency in seconds above this was probably meant in milliseconds."""
SHORTEST_MS = 0.5
"""One in milliseconds below this was probably meant in seconds."""

_PART = re.compile(r"(?P<name>[^<>=]*?)\s*(?P<sign><=|>=|=<|=>|<|>|=)\s*(?P<value>.*)", re.DOTALL)
_VALUE = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>ms|s|%|)")
_IN_S = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Bound:
    """One objective of a run.

    Attributes:
        measure: what is bounded.
        below: whether values must stay below the limit, else above it.
        limit: in the measure's unit.
        included: whether the limit itself is allowed.
        text: as it was written.
    """

    measure: Measure
    below: bool
    limit: float
    included: bool
    text: str

    def met(self, value: float | None) -> bool:
        """Whether a value meets it; one that is undefined does not."""
        if value is None or not math.isfinite(value):
            return False
        if self.included and value == self.limit:
            return True
        return value < self.limit if self.below else value > self.limit

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"text": self.text, "name": self.measure.name, "unit": self.measure.unit, "limit": self.limit}

    def edge(self, values: Sequence[float | None], confidence: float) -> float | None:
        """The end of the interval of the mean that is nearer to the limit, one-sided; None where a value is undefined.

        A bound is met with confidence where this meets it. That all of several bounds are met at once needs no
        correction: each alone is tested at the level (Berger, Technometrics 24, 1982: intersection-union tests).

        Args:
            values: of the measure, one a seed.
            confidence: of the interval, such as 0.95.
        """
        known = [v for v in values if v is not None and math.isfinite(v)]
        if not known or len(known) < len(values):
            return None
        mean, margin = math.fsum(known) / len(known), mean_margin(known, confidence)
        return mean + margin if self.below else mean - margin


def parse_bounds(text: str, metrics: Mapping[str, Metric] = METRICS) -> tuple[Bound, ...]:
    """Read bounds, separated by commas.

    Args:
        text: such as ``ttft_p99<1.0,goodput>0.95``.
        metrics: all that there are, those of plugins among them.

    Raises:
        ConfigError: a metric is unknown (with the nearest names and all of them), a value is no number or hardly in the
            metric's unit, a bound asks for what is worse, or a metric is bounded twice.
    """
    goals, bounds = split_slo(text, metrics)
    if goals is not None:
        raise ConfigError(
            f"--slo {goals}: ttft=... and tpot=... are objectives of each request; a bound on a run is written "
            f"metric<value, as in {EXAMPLE}"
        )
    return bounds


def split_slo(text: str, metrics: Mapping[str, Metric] = METRICS) -> tuple[str | None, tuple[Bound, ...]]:
    """Objectives of each request (``ttft=1.0``) and bounds on the run (``ttft_p99<1.0``), which one text may hold.

    Returns:
        The part with objectives of requests, None where there is none; and the bounds.

    Raises:
        ConfigError: as :func:`parse_bounds`.
    """
    goals: list[str] = []
    bounds: list[Bound] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not match["name"] or match["sign"] in ("=<", "=>"):
            raise ConfigError(
                f"--slo: {part.strip()!r} is not metric<value or metric>value, as in '{EXAMPLE}'; put it into quotes: "
                "a shell takes < and > for itself"
            )
        if match["sign"] == "=":
            if match["name"] not in ("ttft", "tpot"):
                raise ConfigError(
                    f"--slo: {part.strip()!r}: = is for objectives of each request, ttft=1.0 and tpot=0.05; a bound on "
                    f"the run is written with < or >, as in '{EXAMPLE}'"
                )
            goals.append(part.strip())
        else:
            measure = parse_measure(match["name"], "metric of --slo", metrics)
            bounds.append(_bound(part.strip(), measure, match["sign"], match["value"].strip()))
    seen: dict[tuple[str, bool], Bound] = {}
    for bound in bounds:
        before = seen.setdefault((bound.measure.metric, bound.below), bound)
        if before is not bound:
            raise ConfigError(f"--slo: {before.text!r} and {bound.text!r} bound the same metric; give one of them")
    return ",".join(goals) or None, tuple(bounds)


def goals_of(text: str) -> str | None:
    """The part of a text with objectives of each request, before the rest of it is read; None: there is none."""
    parts = [part.strip() for part in text.split(",")]
    return ",".join(part for part in parts if re.fullmatch(r"(ttft|tpot)\s*=[^<>=]*", part)) or None


def with_finished(bounds: Sequence[Bound]) -> tuple[Bound, ...]:
    """The bounds, and where none speaks of requests that are missed, one more: ``finished>0.99``.

    Latencies are of requests that finished: without it an arm that refuses nearly everybody would meet them.
    """
    if any(b.measure.name in (GOODPUT, FINISHED) for b in bounds):
        return tuple(bounds)
    return (*bounds, *parse_bounds(f"{FINISHED}>0.99"))


def _bound(text: str, measure: Measure, sign: str, written: str) -> Bound:
    name = measure.name
    value = _VALUE.fullmatch(written)
    if value is None:
        raise ConfigError(f"--slo: {text!r}: {written!r} is not a number{_expected(measure)}")
    below = sign.startswith("<")
    if measure.better is not None and below != (measure.better == "lower"):
        other = sign.translate(str.maketrans("<>", "><"))
        raise ConfigError(
            f"--slo: {text!r} asks for what is worse: in {name} {measure.better} is better; write "
            f"{name}{other}{written}"
        )
    return Bound(measure, below, _limit(text, measure, float(value["number"]), value["unit"]), "=" in sign, text)


def _expected(measure: Measure) -> str:
    return {
        "s": f" of seconds; as in {measure.name}<0.5 or {measure.name}<500ms",
        "ms": f" of milliseconds; as in {measure.name}<500 or {measure.name}<0.5s",
        "share": f"; as in {measure.name}>0.95 or {measure.name}>95%",
        "": "",
    }[measure.unit]


def _limit(text: str, measure: Measure, number: float, unit: str) -> float:
    """In the measure's unit; checks that it is one that can be meant."""
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"--slo: {text!r}: the limit must be a finite number of at least 0")
    name = measure.name
    if measure.unit == "share":
        share = number / 100 if unit == "%" else number
        if unit in _IN_S or share > 1:
            raise ConfigError(
                f"--slo: {text!r}: {name} is a share of all offered requests, from 0 to 1{_expected(measure)}; "
                "requests a second are request_goodput and request_throughput"
            )
        return share
    if measure.unit == "":
        if unit:
            raise ConfigError(f"--slo: {text!r}: {name} is a plain number; leave {unit!r} out")
        return number
    if unit == "%":
        raise ConfigError(f"--slo: {text!r}: {name} is a time{_expected(measure)}")
    if unit:  # said outright, so it is meant
        return number * _IN_S[unit] / _IN_S[measure.unit]
    if measure.unit == "s" and number > LONGEST_S:
        raise ConfigError(
            f"--slo: {text!r}: {name} is in seconds, and {number:g} s are hardly meant; write {name}<{number:g}ms or "
            f"{measure.metric}<{number:g}, or {name}<{number:g}s if they are"
        )
    if measure.unit == "ms" and number < SHORTEST_MS:
        raise ConfigError(
            f"--slo: {text!r}: {name} is in milliseconds, and {number:g} ms are hardly meant; write {name}<{number:g}s "
            f"or {measure.latency}_{measure.kind}<{number:g}, or {name}<{number:g}ms if they are"
        )
    return number
