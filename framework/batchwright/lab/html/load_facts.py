"""What was offered, in numbers: the load of a comparison as its records have it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.report import counted
from batchwright.lab.run_record import RunRecord
from batchwright.predictor import NO_PREDICTIONS

_SHARES = (50, 90, 99)


def load_facts(run: RunRecord) -> list[tuple[str, str]]:
    """Names and values, in the order of a page."""
    workload = run.workload
    arrivals = np.array([o.arrival_ns for o in run.offered], dtype=np.int64)
    prompts = np.array([r.num_prompt_tokens for r in run.requests], dtype=np.int64)
    outputs = np.array([o.num_output_tokens for o in run.offered], dtype=np.int64)
    facts = [
        ("Workload", str(workload.get("name", "?"))),
        ("Source", str(workload.get("source", "?"))),
        ("Hash", str(workload.get("hash", "?"))),
        ("Speedup", f"{workload.get('speedup', 1):g}"),
        ("Requests", f"{len(run.offered):,}"),
        *([("Counted", counted(run))] if run.window is not None else []),
        *_arrivals(arrivals),
        ("Prompt tokens", _spread(prompts)),
        ("Output tokens asked for", _spread(outputs)),
        ("max_tokens", run.declared_max_tokens),
    ]
    if run.predictions != NO_PREDICTIONS:
        facts.append(("Predicted lengths", run.predictions))
    clients = {r.client_id for r in run.requests if r.client_id is not None}
    if clients:
        facts.append(("Clients", f"{len(clients):,}"))
    priorities = Counter(r.priority for r in run.requests)
    if len(priorities) > 1:
        facts.append(("Priorities", ", ".join(f"{p}: {n:,}" for p, n in sorted(priorities.items()))))
    facts.append(("Objectives", objectives(run)))
    return facts


def objectives(run: RunRecord) -> str:
    """The objectives that requests have, with their numbers where they differ."""
    slos = Counter(r.slo for r in run.requests)
    if set(slos) == {None}:
        return "none"
    said = {slo: _objective(slo.ttft_s, slo.tpot_s) if slo is not None else "none" for slo in slos}
    if len(slos) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{said[slo]}: {count:,} requests" for slo, count in slos.most_common())


def _objective(ttft_s: float | None, tpot_s: float | None) -> str:
    parts = [f"{name} {goal:g} s" for name, goal in (("TTFT", ttft_s), ("TPOT", tpot_s)) if goal is not None]
    return " and ".join(parts) or "none"


def _arrivals(arrivals: NDArray[np.int64]) -> list[tuple[str, str]]:
    if len(arrivals) < 2:
        return []
    span_s = float(arrivals.max() - arrivals.min()) / 1e9
    if not span_s:
        return [("Arrivals", "all at once")]
    gaps = np.diff(np.sort(arrivals)) / 1e9
    rate = (len(arrivals) - 1) / span_s
    return [
        ("Arrivals", f"{rate:,.3g} requests/s over {_duration(span_s)}"),
        ("Burstiness", f"gaps vary by {float(gaps.std() / gaps.mean()):.2f} of their mean (1: Poisson)"),
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds < 120 else f"{seconds / 60:,.1f} min"


def _spread(values: NDArray[np.int64]) -> str:
    if not len(values):
        return "none"
    if values.min() == values.max():
        return f"{values[0]:,} each"
    shares = ", ".join(f"p{p} {np.percentile(values, p):,.0f}" for p in _SHARES)
    return f"mean {values.mean():,.0f}, {shares}, {values.min():,} to {values.max():,}"
