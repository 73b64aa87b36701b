"""The metrics of each class of requests: those with one ``slo_class``, or where nobody named classes, one SLO."""

from __future__ import annotations

from dataclasses import replace

from batchwright.lab.metrics import statistic
from batchwright.lab.records import RequestRecord
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import latency_samples, met_slo
from batchwright.lab.step_records import StepRecords
from batchwright.lab.summary import Summary, statistics

NO_CLASS = "no objectives"


def class_of(record: RequestRecord) -> str:
    """The class of a request: as its workload names it, else its objectives in words."""
    if record.slo_class is not None:
        return record.slo_class
    slo = record.slo
    goals = [] if slo is None else [("ttft", slo.ttft_s), ("tpot", slo.tpot_s)]
    return ",".join(f"{name}={value:g}" for name, value in goals if value is not None) or NO_CLASS


def summarize_classes(run: RunRecord) -> dict[str, Summary]:
    """Metrics of each class, in the order in which classes first came; empty where all requests are of one.

    - ``num_requests``: that were offered.
    - ``completed``: that finished.
    - ``slo_attainment``: share of them that finished within each of their objectives; None where none has any.
    - ``request_goodput``: those a second; None where none has any.
    - mean, standard deviation and quantiles of each latency.
    """
    by_class: dict[str, list[RequestRecord]] = {}
    for record in run.requests:
        by_class.setdefault(class_of(record), []).append(record)
    if len(by_class) < 2:
        return {}
    return {name: _summary(run, records) for name, records in by_class.items()}


def _summary(run: RunRecord, records: list[RequestRecord]) -> Summary:
    met = sum(map(met_slo, records))
    bound = any(r.slo for r in records)
    found: Summary = {
        "num_requests": len(records),
        "completed": sum(r.status == "finished" for r in records),
        "slo_attainment": met / len(records) if bound else None,
        "request_goodput": met / run.duration_s if bound and run.duration_ns else None,
    }
    alone = replace(run, offered=[], requests=records, steps=StepRecords(), batches=run.batches[:0], events=[])
    for name, samples in latency_samples(alone).items():
        found |= {statistic(kind, name): value for kind, value in statistics(samples).items()}
    return found
