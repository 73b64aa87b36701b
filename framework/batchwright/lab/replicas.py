"""What each replica of a run did, and how evenly work was spread over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import FIELDS, StepRecords


def busy_s(run: RunRecord) -> NDArray[np.float64]:
    """float64[replicas]: seconds in which each replica executed a step."""
    steps = run.steps if isinstance(run.steps, StepRecords) else StepRecords(run.steps)
    elapsed = steps.column("end_ns") - steps.column("start_ns")
    busy: NDArray[np.float64] = np.bincount(steps.column("replica"), elapsed, run.num_replicas) / 1e9
    return busy


def busy_imbalance(run: RunRecord) -> float | None:
    """Step time of the busiest replica over the mean of all; None where there is one replica, or no step."""
    if run.num_replicas == 1:
        return None
    busy = busy_s(run)
    return float(busy.max() / busy.mean()) if busy.any() else None


def of_replica(run: RunRecord, replica: int) -> RunRecord:
    """The requests that one replica was given and the steps that it took, over the duration of the whole run."""
    all_steps = run.steps if isinstance(run.steps, StepRecords) else StepRecords(run.steps)
    own = all_steps.column("replica") == replica
    steps, batches = StepRecords(), run.batches[:0]
    steps.extend_packed(np.stack([all_steps.column(name)[own] for name in FIELDS], axis=1))
    batches.frombytes(np.frombuffer(run.batches, dtype=np.uint64)[own].tobytes())
    return replace(
        run,
        settings={**run.settings, "replicas": 1},
        offered=[o for o, r in zip(run.offered, run.requests, strict=True) if r.replica == replica],
        requests=[r for r in run.requests if r.replica == replica],
        steps=steps,
        batches=batches,
        events=[],
    )
