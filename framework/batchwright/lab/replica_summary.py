"""The metrics of each replica of a run."""

from __future__ import annotations

from batchwright.lab.replicas import busy_s, of_replica
from batchwright.lab.run_record import RunRecord
from batchwright.lab.summary import Summary, summarize


def summarize_replicas(run: RunRecord) -> list[Summary]:
    """The metrics of each replica, in order: those of ``summarize``, of the requests that it was given and its steps.

    Rates are over the duration of the whole run. Beyond the metrics of a run:

    - ``num_requests``: requests that were routed to it.
    - ``busy``: share of the run in which it executed a step.
    """
    busy = busy_s(run)
    found: list[Summary] = []
    for replica in range(run.num_replicas):
        own = of_replica(run, replica)
        share = float(busy[replica] / run.duration_s) if run.duration_ns else None
        found.append({"num_requests": len(own.requests), "busy": share, **summarize(own)})
    return found
