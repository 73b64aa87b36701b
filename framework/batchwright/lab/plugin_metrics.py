"""Metrics that plugins bring: numbers of a run, and numbers of each request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from batchwright.errors import PluginError
from batchwright.lab.metrics import METRICS, QUANTILES, Better, Metric
from batchwright.lab.samples import Samples

if TYPE_CHECKING:
    from batchwright.lab.records import RequestRecord
    from batchwright.lab.run_record import RunRecord

Number = float | int | None

KINDS = ("mean", *QUANTILES, "std")
"""What a summary holds of a number of each request: ``mean_NAME``, ``median_NAME``, …"""


@dataclass(frozen=True)
class RunMetric:
    """One number of a run. It has a difference between arms, and no interval.

    Attributes:
        function: of the run's record; None where it is undefined.
        label: for tables, with the unit; the metric's name by default.
        better: which way is better; None: neither by itself.
        decimals: shown in tables.
        scale: what the value is multiplied by in tables.
        unit: of the value.
        doc: its definition, in a sentence.
        shown: whether tables have it without being asked.
    """

    function: Callable[[RunRecord], Number]
    label: str = ""
    better: Better | None = None
    decimals: int = 2
    scale: float = 1.0
    unit: str = ""
    doc: str = ""
    shown: bool = False


@dataclass(frozen=True)
class RequestMetric:
    """One number of each request that finished. Its mean and quantiles get intervals, as those of latencies do.

    Attributes:
        function: of the request's record; None where it is undefined: it is left out.
        label, better, decimals, scale, unit, doc: as of :class:`RunMetric`.
        shown: whether tables have its mean and 99th percentile without being asked.
    """

    function: Callable[[RequestRecord], Number]
    label: str = ""
    better: Better | None = None
    decimals: int = 2
    scale: float = 1.0
    unit: str = ""
    doc: str = ""
    shown: bool = False


def checked_metric(name: str, value: object) -> RunMetric | RequestMetric:
    """What a plugin registers under a name; a plain function is a metric of runs.

    Raises:
        PluginError: it is something else, or a field of it has a wrong value.
    """
    if isinstance(value, (RunMetric, RequestMetric)):
        if not callable(value.function):
            raise PluginError(f"metric {name!r}: function must be callable, not {value.function!r}")
        if value.better not in (None, "lower", "higher"):
            raise PluginError(f"metric {name!r}: better must be 'lower', 'higher' or None, not {value.better!r}")
        return value
    if callable(value) and not isinstance(value, type):
        return RunMetric(cast("Callable[[RunRecord], Number]", value))
    raise PluginError(
        f"metric {name!r} must be a batchwright.lab.RunMetric, a RequestMetric or a function of a run's record, not "
        f"{value!r}"
    )


def names_in_summary(name: str, metric: RunMetric | RequestMetric) -> list[str]:
    """The names under which a summary holds a plugin's metric."""
    return [f"{kind}_{name}" for kind in KINDS] if isinstance(metric, RequestMetric) else [name]


@dataclass(frozen=True)
class MetricSet:
    """The metrics of a summary: those of Batchwright, and those of plugins.

    Attributes:
        brought: of plugins, by name.
        origin: name of each to its plugin.
    """

    brought: Mapping[str, RunMetric | RequestMetric] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Metric]:
        """All, by name."""
        return {**METRICS, **{metric.name: metric for metric in self._described()}}

    def _described(self) -> Iterator[Metric]:
        for name, m in self.brought.items():
            label, common = m.label or name, (m.decimals, m.scale, m.unit, m.doc)
            if isinstance(m, RunMetric):
                yield Metric(name, label, m.better, *common, m.shown)
                continue
            for kind in KINDS:
                better = None if kind == "std" else m.better
                shown = m.shown and kind in ("mean", "p99")
                yield Metric(f"{kind}_{name}", f"{kind.capitalize()} {label}", better, *common, shown)

    def summarize(self, run: RunRecord) -> dict[str, Number]:
        """What plugins say of a run, by name.

        Raises:
            PluginError: one failed, or gave something else than a finite number or None.
        """
        from batchwright.lab.summary import statistics

        found: dict[str, Number] = {}
        for name, metric in self.brought.items():
            if isinstance(metric, RunMetric):
                found[name] = self._called(name, metric.function, run, "the run")
        for name, samples in self.samples(run).items():
            found |= {f"{kind}_{name}": value for kind, value in statistics(samples).items()}
        return found

    def samples(self, run: RunRecord) -> dict[str, Samples]:
        """Values of each metric of requests, by name: of those that finished, without those where it is undefined.

        Raises:
            PluginError: as of ``summarize``.
        """
        found: dict[str, Samples] = {}
        for name, metric in self.brought.items():
            if isinstance(metric, RequestMetric):
                values = [
                    (place, self._called(name, metric.function, record, record.request_id))
                    for place, record in enumerate(run.requests)
                    if record.status == "finished"
                ]
                known = [(place, value) for place, value in values if value is not None]
                found[name] = Samples(
                    np.array([value for _, value in known], dtype=np.float64),
                    np.array([place for place, _ in known], dtype=np.int64),
                )
        return found

    def _called(self, name: str, function: Callable[[Any], Any], record: object, whom: str) -> Number:
        where = f"metric {name!r} of plugin {self.origin.get(name, 'unknown')!r}"
        try:
            value = function(record)
        except Exception as error:
            raise PluginError(f"{where} raised {type(error).__name__}: {error} for {whom}; mend the plugin") from error
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise PluginError(f"{where} gave {value!r} for {whom}; it gives a finite number, or None where undefined")
        return int(value) if isinstance(value, Integral) else float(value)


BUILT_IN = MetricSet()
"""No plugin's."""
