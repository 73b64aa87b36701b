"""The loads of a search: one workload offered faster and slower, or by more users and fewer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from batchwright.errors import BatchwrightError
from batchwright.lab.designs.capacity_plan import CapacityPlan
from batchwright.lab.designs.changed_load import is_synthetic, with_load
from batchwright.lab.designs.replicates import tasks_of
from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Task
from batchwright.lab.varied import varied
from batchwright.lab.workload import Workload


class Loads:
    """Makes the tasks of a search. A load is a speedup of the workload, or in a closed loop a number of users.

    A seed's workload is drawn first, and then made faster: at every load it has the same requests, or where loads have
    different numbers of them, those of a smaller one are the first of a larger one's.

    Attributes:
        start: the load to begin with: the workload as it was given.
        is_closed: whether loads are users, and thus whole numbers.
        base_rate: requests a second of the workload as it was given; infinite where they come at once.
    """

    def __init__(self, setup: Setup, plan: CapacityPlan) -> None:
        """Takes arms and workload, and how they are searched."""
        self.is_closed = plan.users is not None
        self.start = 1.0 if plan.users is None else float(plan.users)
        self.base_rate = setup.workload.rate
        self._plan = plan
        self._base = {(task.arm, task.seed): task for task in tasks_of(setup, plan.seeds)}
        self._sized = _Sized(setup, plan.seeds)
        self._made: dict[tuple[int, float], Workload] = {}

    def task(self, arm: str, seed: int, load: float) -> Task:
        """The run of an arm at a load."""
        task = self._base[arm, seed]
        if (seed, load) not in self._made:
            self._made[seed, load] = self._workload(task, load)
        return replace(task, workload=self._made[seed, load], point=self.words(load))

    def keep_only(self, runs: Collection[tuple[int, float]]) -> None:
        """Forget the workloads of all but these seeds and loads: a search has dozens, and each may be a whole trace."""
        self._made = {run: workload for run, workload in self._made.items() if run in runs}

    def words(self, load: float) -> str:
        """A load in words."""
        return f"{load:g} users" if self.is_closed else f"{load * self.base_rate:.6g} requests/s"

    def _workload(self, task: Task, load: float) -> Workload:
        if self.is_closed:
            # As many requests of each user, so that a run of many users is not all beginning and end.
            return replace(self._sized.of(task.seed, load / self.start), concurrency=round(load))
        if self._plan.duration_s is None:
            return task.workload.faster(load)
        own_s = self._sized.num_arrivals / self.base_rate
        return self._sized.of(task.seed, self._plan.duration_s * load / own_s).faster(load)


class _Sized:
    """The workload of a setup, longer and shorter, for each seed."""

    def __init__(self, setup: Setup, seeds: tuple[int, ...]) -> None:
        self._setup = setup
        self._varies = setup.resample and tuple(seeds) != (setup.seed,)
        self.num_arrivals = sum(not row.after for row in setup.workload.rows)
        same = self._drawn(self.num_arrivals) if is_synthetic(setup.workload) else None
        self._is_drawn = same is not None and same.rows == setup.workload.rows

    def of(self, seed: int, length: float) -> Workload:
        """So many times as long, at the rate that it was given with.

        A synthetic one is drawn with another number of arrivals. Any other, and one that was cut since it was drawn, is
        put together from blocks of itself, as of another seed.
        """
        if length == 1 and not self._varies:
            return self._setup.workload
        if self._is_drawn:
            drawn = self._drawn(max(1, round(self.num_arrivals * length)))
            assert drawn is not None
            return varied(drawn, seed) if self._varies else drawn
        return varied(self._setup.workload, seed if self._varies else self._setup.seed, length)

    def _drawn(self, num: int) -> Workload | None:
        make, keys = self._setup.make, {"n": num}
        try:
            return make(keys) if make is not None else with_load(self._setup.workload, keys)
        except BatchwrightError:
            return None
