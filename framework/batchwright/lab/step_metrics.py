"""Metrics of a run's steps: how large they were, how full the KV pool was, whether somebody was left waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import StepRecords


def step_metrics(run: RunRecord) -> dict[str, float | int | None]:
    """``num_steps``, ``steps_per_s``, ``kv_use_*``, ``*_batch_size``, ``*_step_tokens`` and ``waiting_share``.

    All are None where no step was seen, as of a server elsewhere.
    """
    steps = run.steps if isinstance(run.steps, StepRecords) else StepRecords(run.steps)
    elapsed = (steps.column("end_ns") - steps.column("start_ns")).astype(np.float64)
    tokens = steps.column("num_prefill_tokens") + steps.column("num_decodes")
    sizes = steps.column("batch_size")
    blocks = run.limits.num_blocks
    used = 1 - steps.column("free_blocks") / blocks if blocks else np.zeros(0)
    total = float(elapsed.sum())
    time = run.duration_ns * run.num_replicas
    return {
        "num_steps": len(steps) or None,
        "steps_per_s": len(steps) / run.duration_s if run.duration_ns and len(steps) else None,
        "kv_use_mean": float((used * elapsed).sum() / total) if total and len(used) else None,
        "kv_use_peak": float(used.max()) if len(used) else None,
        # Records of before there was a batch_size have none in any step.
        **_distribution("batch_size", sizes if sizes.any() else sizes[:0]),
        **_distribution("step_tokens", tokens),
        "waiting_share": float(elapsed[steps.column("num_waiting") > 0].sum() / time) if time and len(steps) else None,
    }


def _distribution(name: str, values: NDArray[Any]) -> dict[str, float | None]:
    if not len(values):
        return {f"mean_{name}": None, f"median_{name}": None, f"p99_{name}": None}
    median, p99 = np.percentile(values, (50, 99)).tolist()
    return {f"mean_{name}": float(values.mean()), f"median_{name}": median, f"p99_{name}": p99}
