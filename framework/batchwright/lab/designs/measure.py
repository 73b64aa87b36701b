"""Numbers of a run by the names that users write: those of the JSON, and short ones in seconds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from batchwright.errors import ConfigError
from batchwright.lab.metrics import METRICS, Metric, statistic
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import LATENCIES, latency_samples, met_slo
from batchwright.lab.summary import Summary, summarize
from batchwright.lab.window import measured

GOODPUT, FINISHED = "goodput", "finished"
"""Shares of all offered requests: who finished within their objectives, and who finished."""

_KIND = r"mean|median|std|p\d+(?:\.\d+)?"
_LATENCY = "|".join(LATENCIES)
_SHORT = re.compile(rf"(?P<latency>{_LATENCY})_(?P<kind>{_KIND})")
_IN_JSON = re.compile(rf"(?P<kind>{_KIND})_(?P<latency>{_LATENCY})_ms")
_EXAMPLES = ("mean", "median", "std", "p50", "p90", "p95", "p99", "p99.9")

Unit = Literal["s", "ms", "share", ""]


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run.

    Attributes:
        name: as it was written.
        unit: of a value that is written beside the name: ``s``, ``ms``, ``share`` (0 to 1) or none.
        better: which way is better; None: neither by itself.
        latency, kind: of a latency: which, and what of it (``mean``, ``median``, ``std``, ``p99``); else empty.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"] | None
    latency: str = ""
    kind: str = ""

    @property
    def metric(self) -> str:
        """Its name in the JSON; two names of one number have the same."""
        return statistic(self.kind, self.latency) if self.latency else self.name

    def of(self, run: RunRecord, summary: Summary | None = None) -> float | None:
        """The value in ``unit``; None where it is undefined: no request finished, say.

        Latencies are of the requests that finished, as in a summary; all is of the run's window, where it has one.

        Args:
            run: of which run.
            summary: of it, where there is one already.
        """
        if self.name in (GOODPUT, FINISHED):
            requests = measured(run).requests
            counts = met_slo if self.name == GOODPUT else (lambda request: request.status == "finished")
            return sum(map(counts, requests)) / len(requests) if requests else None
        if summary is None or self.metric not in summary:
            if self.latency and self.metric not in METRICS:
                return self._percentile(run)
            summary = summarize(run)
        value = summary[self.metric]
        return None if value is None else float(value) / (1e3 if self.unit == "s" else 1)

    def _percentile(self, run: RunRecord) -> float | None:
        values = latency_samples(measured(run))[self.latency].values
        if not len(values):
            return None
        return float(np.percentile(values, float(self.kind[1:]))) / (1e3 if self.unit == "s" else 1)


def parse_measure(name: str, where: str = "metric", metrics: Mapping[str, Metric] = METRICS) -> Measure:
    """The number of that name.

    Names are those of the JSON (``p99_ttft_ms``, ``request_goodput``; any percentile from p1 to p99.9 stands for p99),
    and short ones: ``ttft_p99``, ``itl_mean``, ``e2el_median`` in seconds, ``goodput`` and ``finished``, shares of all
    offered requests.

    Args:
        name: as written.
        where: what to call it in errors.
        metrics: all that there are, those of plugins among them.

    Raises:
        ConfigError: there is none; with the nearest names and all of them.
    """
    name = name.strip()
    if name in (GOODPUT, FINISHED):
        return Measure(name, "share", "higher")
    for pattern, unit in ((_SHORT, "s"), (_IN_JSON, "ms")):
        match = pattern.fullmatch(name)
        if match:
            kind = match["kind"]
            if kind.startswith("p") and not 1 <= float(kind[1:]) <= 99.9:
                raise ConfigError(f"{where} {name!r}: a percentile is one from p1 to p99.9")
            better: Literal["lower"] | None = None if kind == "std" else "lower"
            return Measure(name, "s" if unit == "s" else "ms", better, match["latency"], kind)
    if name in metrics:
        return Measure(name, "", metrics[name].better)
    near = difflib.get_close_matches(name, [*_names(), *metrics], n=3, cutoff=0.6)
    hint = "did you mean " + " or ".join(map(repr, near)) + "? There are" if near else "there are"
    raise ConfigError(f"unknown {where} {name!r}; {hint} {describe_names(metrics)}")


def _names() -> Iterable[str]:
    for latency in LATENCIES:
        for kind in _EXAMPLES:
            yield f"{latency}_{kind}"
            yield f"{kind}_{latency}_ms"
    yield from (GOODPUT, FINISHED)


def describe_names(metrics: Mapping[str, Metric] = METRICS) -> str:
    """All names in a sentence."""
    latencies = ", ".join(f"{latency}_p99" for latency in LATENCIES)
    others = [name for name in metrics if not _IN_JSON.fullmatch(name)]
    return (
        f"{latencies} in seconds (also _mean, _median, _std, and _p1 to _p99.9); the same in milliseconds as "
        f"p99_{LATENCIES[0]}_ms; {GOODPUT} and {FINISHED}, shares of all offered requests; {', '.join(others)}"
    )
