"""Tables of what records and files of runs hold."""

from __future__ import annotations

from collections.abc import Iterable

from batchwright.cli.policies import parameters
from batchwright.lab import METRICS
from batchwright.lab.files.columns import Column
from batchwright.lab.samples import LATENCY_KINDS
from batchwright.replay.batchwright_format import _Request as ReplayedRequest
from table_makers.markdown import code, table


def latencies() -> str:
    """Every kind of latency."""
    rows = [(code(f"mean_{name}_ms"), kind.label, kind.unit, kind.doc) for name, kind in LATENCY_KINDS.items()]
    return table(("name of the mean", "in tables", "unit", "definition"), rows)


def metrics() -> str:
    """Every metric of a summary that is not of a latency."""
    rows = [
        (code(name), metric.label, metric.unit, metric.better or "", metric.doc)
        for name, metric in METRICS.items()
        if not name.endswith("_ms")
    ]
    return table(("name", "in tables", "unit", "better", "definition"), rows)


def columns(of: Iterable[Column]) -> str:
    """The columns of a Parquet file."""
    kinds = {"times": "list&lt;int64&gt;", "slo": "struct&lt;ttft_s, tpot_s: double&gt;"}
    rows = [(code(c.name), kinds.get(c.kind, c.kind), c.unit, "yes" if c.nullable else "", c.doc) for c in of]
    return table(("column", "type", "unit", "null", "holds"), rows)


def recorded_request() -> str:
    """Fields of a request in ``batchwright-1``."""
    rows = [(code(name), kind, code(default)) for name, (kind, default, _) in parameters(ReplayedRequest).items()]
    return table(("field", "type", "default"), rows)
