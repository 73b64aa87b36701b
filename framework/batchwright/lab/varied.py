"""The workload of a seed: a synthetic one drawn again, a trace put together anew from blocks of itself."""

from __future__ import annotations

import re
from dataclasses import replace

from batchwright.errors import BatchwrightError, WorkloadError
from batchwright.lab.resampling import resampled
from batchwright.lab.sessions import sessions_of
from batchwright.lab.workload import Workload

NUM_BLOCKS = 30
"""Blocks that a trace is cut into: long enough for the bursts and queues in them, as the blocks of the verdicts."""

_SYNTHETIC = "synthetic:"
_SEED = re.compile(r"(?:^|(?<=,))\s*seed\s*=\s*(\d+)\s*(?=,|$)")


def varied(workload: Workload, seed: int, length: float = 1.0) -> Workload:
    """Another workload of the same kind; equal seeds give equal ones.

    A synthetic one is drawn again, with the seed added to its own; of several that are offered together, each, and none
    with a seed that another of them has for another ``seed``. Any other, and one whose rows were changed since it was
    drawn, is put together from blocks of sessions that follow each other (see
    :func:`~batchwright.lab.resampling.resampled`), each a thirtieth of it.

    Args:
        workload: to vary.
        seed: of what is drawn.
        length: how many times as long it is to be, at the same rate; where that is not 1, even a synthetic one is put
            together from blocks.

    Raises:
        WorkloadError: its rows are read lazily.
    """
    if not isinstance(workload.rows, tuple):
        raise WorkloadError(
            f"workload {workload.name!r} is read lazily, and cannot be drawn anew: read it as a whole, or leave its "
            "arrivals as they are (--no-resample)"
        )
    again = _drawn_again(workload, seed) if length == 1 else None
    if again is not None:
        return again
    num = len(sessions_of(workload.rows))
    drawn = resampled(workload, seed, block=max(1, -(-num // NUM_BLOCKS)), num=max(1, round(num * length)))
    return replace(drawn, name=workload.name)


def _drawn_again(workload: Workload, seed: int) -> Workload | None:
    """A synthetic workload with another seed, or several that are offered together, each with another one; None where
    it is none, or was changed in a way that is not known here."""
    from batchwright.lab.loading import AND, load_workload  # it reads files of every kind, among which are workloads

    parts = [part.strip() for part in workload.source.split(AND)]
    if not workload.rows or not all(part.startswith(_SYNTHETIC) for part in parts):
        return None
    try:
        whole = load_workload(workload.source)
        limit = len(workload) if len(workload) < len(whole) else None
        if _treated_as(workload, whole, limit).rows != workload.rows:
            return None
        owns = [_own_seed(part) for part in parts]
        # Two clients with seeds 1 and 2 must not both have the draws of 2: runs of two seeds would be alike in part.
        apart = seed * (max(owns) - min(owns) + 1)
        made = AND.join(_with_seed(part, own + apart) for part, own in zip(parts, owns, strict=True))
        again = _treated_as(workload, load_workload(made), limit)
    except BatchwrightError:
        return None
    return replace(workload, rows=again.rows, source=again.source)


def _own_seed(specification: str) -> int:
    found = _SEED.search(specification.removeprefix(_SYNTHETIC))
    return int(found[1]) if found is not None else 0


def _with_seed(specification: str, seed: int) -> str:
    """A specification with this seed in the place of its own."""
    parts = [part for part in _SEED.sub("", specification.removeprefix(_SYNTHETIC)).split(",") if part.strip()]
    return _SYNTHETIC + ",".join([*parts, f"seed={seed}"])


def _treated_as(workload: Workload, made: Workload, limit: int | None) -> Workload:
    """What was made anew, treated as this workload was: cut to so many rows, with its objectives and its speed."""
    assert isinstance(workload.rows, tuple)
    if limit is not None:
        made = made.first(limit)
    slo = workload.rows[0].slo
    if slo is not None:
        made = made.with_slo(slo)
    return made.faster(workload.speedup / made.speedup)
