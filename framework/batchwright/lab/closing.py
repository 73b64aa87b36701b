"""What a comparison could show, and what it could not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from batchwright.lab.load import Load
from batchwright.lab.run_record import RunRecord
from batchwright.lab.settings import differing_settings

FEW_SEEDS = 5
"""With fewer, Student's t makes intervals so wide that little is shown."""

ALIKE = 0.01
"""With fewer decisions that differ, differences between the arms are those of a few steps."""

TARGET = 0.8
"""Share of its capacity to load an arm with so that queues form, and still drain though capacity is an estimate."""

_STOPPED = {
    "interrupted": "was interrupted",
    "max_steps": "reached its limit of steps",
    "max_seconds": "reached its limit of time",
    "server_lost": "lost its server",
}
_MISSED = ("refused", "failed", "aborted", "unfinished")

_DETECTED = {
    "thrash": "thrash (much is computed again and again)",
    "livelock": "livelock (nobody got on while all was computed again)",
    "starvation": "starvation of a waiting request",
}

Arms = Mapping[str, Sequence[RunRecord]]
"""Runs by arm, one a seed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed.

    Attributes:
        arm: whose.
        seed: of the run.
        error: what it failed with, in words.
    """

    arm: str
    seed: int
    error: str


def closing_lines(
    arms: Arms,
    loads: Mapping[str, Load],
    differ: Mapping[str, float],
    failures: Sequence[Failure] = (),
    alike: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """The closing lines of a report, most urgent first.

    Args:
        arms: the arms' records.
        loads: by arm.
        differ: share of decisions that differ from the first arm's, by arm.
        failures: runs that failed.
        alike: by arm, how many seeds gave the same as an earlier one.
    """
    yield from _failed(arms, failures)
    for arm, runs in arms.items():
        yield from _stopped(arm, runs)
    for arm, runs in arms.items():
        yield from _missed(arm, runs)
    for arm, runs in arms.items():
        kinds = [str(event.get("kind", "")) for run in runs for event in run.events]
        faults = sum(kind.endswith("_fault") for kind in kinds)
        if faults:
            yield f"{arm} had {faults} faults of plugins or backend (see events in the records)"
        for kind, what in _DETECTED.items():
            count = kinds.count(kind)
            if count:
                yield f"{arm}: {what} was detected {count} times (see events in the records)"
    overloaded = [arm for arm in arms if loads[arm].overloaded]
    if overloaded:
        yield _overload(arms, loads, overloaded)
    if differ:
        yield _separation(arms, loads, differ, bool(overloaded))
    yield from _repeats(arms, alike or {})
    yield from dict.fromkeys(note for runs in arms.values() for run in runs for note in run.notes)


def _failed(arms: Arms, failures: Sequence[Failure]) -> Iterator[str]:
    by_arm: dict[str, list[Failure]] = {}
    for failure in failures:
        by_arm.setdefault(failure.arm, []).append(failure)
    for arm, failed in by_arm.items():
        error = failed[0].error
        if arm not in arms:
            yield f"{arm} failed and is not compared: {error}"
        else:
            seeds = ", ".join(str(f.seed) for f in failed)
            yield f"{arm} failed in {'seeds' if len(failed) > 1 else 'seed'} {seeds}; its other seeds count: {error}"


def _stopped(arm: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    for kind in dict.fromkeys(run.stopped for run in runs if run.stopped):
        assert kind is not None
        stopped = [run for run in runs if run.stopped == kind]
        how = _STOPPED.get(kind, kind)
        rest = "failed" if kind == "server_lost" else "is unfinished"
        if len(runs) == 1:
            yield f"{arm} {how} after {runs[0].duration_s:.1f} s: the rest {rest}"
        elif kind == "interrupted":
            yield f"{arm} {how} in seed {stopped[0].seed}, which verdicts leave out where there are others"
        else:
            yield f"{arm} {how} in {len(stopped)} of {len(runs)} seeds: the rest of them {rest}"


def _missed(arm: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    counts = dict.fromkeys(_MISSED, 0)
    for run in runs:
        for request in run.requests:
            if request.status != "finished":
                counts[request.status] += 1
    if not any(counts.values()):
        return
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    seeds = f" of {len(runs)} seeds" if len(runs) > 1 else ""
    total = sum(len(run.requests) for run in runs)
    line = f"{arm}: {said} of {total} requests{seeds}; its latencies are of the others only"
    error = next((r.error for run in runs for r in run.requests if r.error), None)
    yield f"{line}; the first error: {error}" if error else line


def _overload(arms: Arms, loads: Mapping[str, Load], overloaded: Sequence[str]) -> str:
    if len(arms) == 1:
        who = f"{overloaded[0]} is overloaded"
    elif len(overloaded) == len(arms):
        who = f"{'both' if len(arms) == 2 else 'all'} arms are overloaded"
    else:
        who = f"{' and '.join(overloaded)} {'is' if len(overloaded) == 1 else 'are'} overloaded, other arms are not,"
    if not any(loads[arm].arrival_span_s for arm in overloaded):
        return f"{who}: all requests arrive at once, and latencies measure the length of the run, not the policy"
    line = f"{who} at this rate: latencies measure the length of the run, not the policy"
    slower = [
        _speedup(run) * loads[arm].arrival_span_s / run.duration_s * 0.9
        for arm in overloaded
        for run in arms[arm]
        if run.duration_ns
    ]
    return f"{line}; try --speedup {_round(min(slower))}" if slower else line


def _separation(arms: Arms, loads: Mapping[str, Load], differ: Mapping[str, float], overloaded: bool) -> str:
    most = max(differ.values())
    waited = max(load.waited for load in loads.values())
    full = max(load.kv_full for load in loads.values())
    line = f"decisions differ in {most:.1%} of steps; somebody waited in {waited:.1%}; KV full in {full:.1%}"
    firsts = [runs[0] for runs in arms.values()]
    if any(len(runs) > 1 for runs in arms.values()):
        line += ", on average over the seeds"
    if most >= ALIKE:
        return line
    if not differing_settings(firsts):
        return f"{line}: the arms have the same policy and settings"
    line = f"{line}: this load cannot separate the arms"
    known = [load.utilization for load in loads.values() if load.utilization]
    if overloaded or not known:
        return line
    faster = _speedup(firsts[0]) * TARGET / max(known)
    if faster <= 1.05 * _speedup(firsts[0]):
        return f"{line}, near saturation as it is; try other lengths or limits"
    return f"{line}; try --speedup {_round(faster)}"


def _repeats(arms: Arms, alike: Mapping[str, int]) -> Iterator[str]:
    """What seeds are missing, or were for nothing."""
    seeds = max(len(runs) for runs in arms.values())
    if len(arms) > 1 and seeds == 1 and not all(run.virtual_time for runs in arms.values() for run in runs):
        yield (
            "the clock is real and each arm ran once: what else the machine did in one run and not in the other "
            "counts as a difference here; repeat the comparison with --seeds 5 before you believe a small one"
        )
    if len(arms) > 1 and 1 < seeds < FEW_SEEDS:
        yield (
            f"{seeds} seeds say little of how much seeds differ, and intervals are wide for it: {FEW_SEEDS} or more "
            "show more"
        )
    if any(alike.values()):
        yield (
            f"{max(alike.values())} of {seeds} seeds gave the very runs of another seed, and do not count again: let "
            "something vary with the seed, such as --noise 0.05, or arrivals without --no-resample"
        )


def _speedup(run: RunRecord) -> float:
    return float(run.workload.get("speedup", 1.0))


def _round(speedup: float) -> str:
    """Two significant digits."""
    return f"{float(f'{speedup:.2g}'):g}"
