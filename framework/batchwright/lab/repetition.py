"""Runs repeated over seeds: what each seed varies, and in which order they are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from batchwright.errors import ConfigError
from batchwright.lab.executors.task import Task
from batchwright.lab.run_record import RunRecord
from batchwright.lab.varied import varied
from batchwright.lab.workload import Workload


def seeds_of(seeds: int | Sequence[int] | None, first: int = 0) -> list[int]:
    """The seeds of an experiment.

    Args:
        seeds: how many, or which; None: one.
        first: the first of so many.

    Raises:
        ConfigError: there are none, one of them is no whole number of at least 0, or two are the same.
    """
    if seeds is None:
        return [first]
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or seeds < 1:
            raise ConfigError(f"seeds must be a whole number of at least 1, or a list of them, not {seeds!r}")
        return list(range(first, first + seeds))
    found = list(seeds)
    if not found or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in found):
        raise ConfigError(f"seeds must be whole numbers of at least 0, at least one, not {seeds!r}")
    if len(set(found)) < len(found):
        raise ConfigError(f"each seed stands once, and {found} has one twice")
    return found


def parse_seeds(text: str | None, first: int = 0) -> list[int]:
    """The seeds of a command line: ``5`` is five of them, ``3,5,8`` are these.

    Raises:
        ConfigError: it is neither, or see :func:`seeds_of`.
    """
    if text is None:
        return seeds_of(None, first)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {text}: expected how many, as in --seeds 5, or which, as in --seeds 3,5,8")
    numbers = [int(part) for part in parts]
    return seeds_of(numbers[0] if "," not in text else numbers, first)


def repeated(tasks: Sequence[Task], seeds: Sequence[int], *, resample: bool = True) -> list[Task]:
    """Each task once for each seed.

    A seed varies prompts, and all that the engine and its backend draw, a simulator's noise among it: a task's own seed
    of the engine is raised by as much as the run's. With ``resample`` it varies the workload too (see
    :func:`~batchwright.lab.varied.varied`), for all arms alike. The order of the arms is turned round with every
    seed, so that on a real clock none of them always runs first, or last.

    Args:
        tasks: one an arm.
        seeds: of the runs.
        resample: whether the workload varies with the seed.

    Raises:
        WorkloadError: a workload cannot be resampled.
    """
    if len(seeds) == 1 and tasks and seeds[0] == tasks[0].seed:
        return list(tasks)
    found: list[Task] = []
    made: dict[tuple[int, int], Workload] = {}
    for place, seed in enumerate(seeds):
        for task in tasks if place % 2 == 0 else reversed(tasks):
            key = id(task.workload), seed
            if key not in made:
                made[key] = varied(task.workload, seed) if resample else task.workload
            config = task.config
            if seed != task.seed:
                config = config.model_copy(update={"seed": config.seed + seed - task.seed})
            found.append(replace(task, seed=seed, config=config, workload=made[key]))
    return found


def in_order(runs: Iterable[RunRecord], arms: Sequence[str]) -> list[RunRecord]:
    """Runs by arm, in the order of the arms, and within an arm by seed."""
    return sorted(runs, key=lambda run: (arms.index(run.arm), run.seed))
