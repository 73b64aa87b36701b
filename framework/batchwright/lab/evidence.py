"""What verdicts rest on: the numbers of a run, and the values that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash

from batchwright.lab.bootstrap import num_blocks_of
from batchwright.lab.metrics import QUANTILES, statistic
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import Samples, latency_samples, met_slo
from batchwright.lab.summary import Summary, summarize
from batchwright.lab.window import measured

GOODPUT = "request_goodput"


@dataclass(frozen=True)
class Sampled:
    """Values of the requests or tokens of a run, and the metrics that are made of them.

    Attributes:
        samples: the values.
        names: of the metrics, by what they are: ``mean``, one of ``QUANTILES``, or ``total``.
    """

    samples: Samples
    names: dict[str, str]


@dataclass(frozen=True)
class Evidence:
    """One run, as far as it counts.

    Attributes:
        seed: of the run.
        num_requests: how many count.
        in_flight: how many of them were in the system at a time, on average.
        summary: its metrics.
        sampled: the values behind them, those that have any.
    """

    seed: int
    num_requests: int
    in_flight: float
    summary: Summary
    sampled: tuple[Sampled, ...]

    @classmethod
    def of(cls, run: RunRecord, metrics: MetricSet = BUILT_IN) -> Evidence:
        """The numbers of a run, those of plugins among them.

        Raises:
            PluginError: as of ``summarize``.
            WorkloadError: the run's window leaves no request.
        """
        counted = measured(run)
        summary = summarize(run, metrics)
        kinds = ("mean", *QUANTILES)
        sampled = [
            Sampled(samples, {kind: statistic(kind, name) for kind in kinds})
            for name, samples in latency_samples(counted).items()
        ]
        for name, samples in metrics.samples(counted).items():
            sampled.append(Sampled(samples, {kind: f"{kind}_{name}" for kind in kinds}))
        if summary[GOODPUT] is not None:
            met = np.array([met_slo(r) for r in counted.requests], dtype=np.float64)
            rates = met / counted.duration_s if counted.duration_ns else met
            sampled.append(Sampled(Samples(rates, np.arange(len(met), dtype=np.int64)), {"total": GOODPUT}))
        return cls(
            run.seed, len(counted.requests), _in_flight(counted), summary, tuple(s for s in sampled if len(s.samples))
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of requests that a bootstrap draws from."""
        return num_blocks_of(self.num_requests, self.in_flight)

    @cached_property
    def samples_of(self) -> dict[str, Samples]:
        """The values behind each metric that has any, by its name."""
        return {name: sampled.samples for sampled in self.sampled for name in sampled.names.values()}

    @cached_property
    def fingerprint(self) -> bytes:
        """Equal in runs whose requests were served alike."""
        digest = xxhash.xxh3_128()
        for sampled in self.sampled:
            digest.update(sampled.samples.values.tobytes())
            digest.update(sampled.samples.owners.tobytes())
        digest.update(repr(sorted(self.summary.items())).encode())
        return digest.digest()


def _in_flight(run: RunRecord) -> float:
    """By Little's law: the time that requests spent in the system, over that from the first arrival to the last end."""
    ends = [r.finish_ns for r in run.requests if r.finish_ns is not None]
    spent = sum(r.finish_ns - r.arrival_ns for r in run.requests if r.finish_ns is not None)
    took = max(ends) - min(r.arrival_ns for r in run.requests) if ends else 0
    return spent / took if took > 0 else 0.0
