"""The runs of a setup: every arm, with every seed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Task
from batchwright.lab.repetition import repeated
from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import StepRecords


def tasks_of(setup: Setup, seeds: Sequence[int], point: str = "") -> list[Task]:
    """One task for each arm and seed; the arms of a seed stand together, so that on a real clock they take turns.

    Args:
        setup: what is run.
        seeds: of the runs.
        point: what tells these runs from others of the design, in words.
    """
    tasks = [
        Task(
            arm,
            config,
            setup.workload,
            setup.seed,
            setup.options,
            setup.origins.get(arm, {}),
            setup.local.get(arm, {}),
            point,
            setup.window,
        )
        for arm, config in setup.configs.items()
    ]
    return repeated(tasks, seeds, resample=setup.resample)


def slim(run: RunRecord) -> RunRecord:
    """A record without what takes memory: its requests and steps."""
    return replace(run, offered=[], requests=[], steps=StepRecords(), batches=array("Q"), events=[])
