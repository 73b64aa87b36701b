"""What a comparison could show, and what it could not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from batchwright.lab.load import Load
from batchwright.lab.run_record import RunRecord
from batchwright.lab.settings import differing_settings

ALIKE = 0.01
"""With fewer decisions that differ, differences between the arms are those of a few steps."""

TARGET = 0.8
"""Share of its capacity to load an arm with so that queues form, and still drain though capacity is an estimate."""

_STOPPED = {
    "interrupted": "was interrupted",
    "max_steps": "reached its limit of steps",
    "max_seconds": "reached its limit of time",
}
_MISSED = ("refused", "failed", "aborted", "unfinished")

_DETECTED = {
    "thrash": "thrash (much is computed again and again)",
    "livelock": "livelock (nobody got on while all was computed again)",
    "starvation": "starvation of a waiting request",
}


def closing_lines(runs: Sequence[RunRecord], loads: Mapping[str, Load], differ: Mapping[str, float]) -> Iterator[str]:
    """The closing lines of a report, most urgent first.

    Args:
        runs: the arms' records.
        loads: by arm.
        differ: share of decisions that differ from the first arm's, by arm.
    """
    for run in runs:
        if run.stopped:
            how = _STOPPED.get(run.stopped, run.stopped)
            yield f"{run.arm} {how} after {run.duration_s:.1f} s: the rest is unfinished"
    for run in runs:
        yield from _missed(run)
    for run in runs:
        faults = sum(1 for event in run.events if str(event.get("kind", "")).endswith("_fault"))
        if faults:
            yield f"{run.arm} had {faults} faults of plugins or backend (see events in the records)"
        for kind, what in _DETECTED.items():
            count = sum(1 for event in run.events if event.get("kind") == kind)
            if count:
                yield f"{run.arm}: {what} was detected {count} times (see events in the records)"
    overloaded = [run.arm for run in runs if loads[run.arm].overloaded]
    if overloaded:
        yield _overload(runs, loads, overloaded)
    if differ:
        yield _separation(runs, loads, differ, bool(overloaded))
    if len(runs) > 1 and not all(run.virtual_time for run in runs):
        yield (
            "the clock is real and each arm ran once: what else the machine did in one run and not in the other "
            "counts as a difference here; repeat the comparison before you believe a small one"
        )
    yield from dict.fromkeys(note for run in runs for note in run.notes)


def _missed(run: RunRecord) -> Iterator[str]:
    counts = {status: sum(r.status == status for r in run.requests) for status in _MISSED}
    if not any(counts.values()):
        return
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    line = f"{run.arm}: {said} of {len(run.requests)} requests; its latencies are of the others only"
    error = next((r.error for r in run.requests if r.error), None)
    yield f"{line}; the first error: {error}" if error else line


def _overload(runs: Sequence[RunRecord], loads: Mapping[str, Load], overloaded: Sequence[str]) -> str:
    if len(runs) == 1:
        who = f"{runs[0].arm} is overloaded"
    elif len(overloaded) == len(runs):
        who = f"{'both' if len(runs) == 2 else 'all'} arms are overloaded"
    else:
        who = f"{' and '.join(overloaded)} {'is' if len(overloaded) == 1 else 'are'} overloaded, other arms are not,"
    if not any(loads[arm].arrival_span_s for arm in overloaded):
        return f"{who}: all requests arrive at once, and latencies measure the length of the run, not the policy"
    line = f"{who} at this rate: latencies measure the length of the run, not the policy"
    slower = [
        _speedup(run) * loads[run.arm].arrival_span_s / run.duration_s * 0.9
        for run in runs
        if run.arm in overloaded and run.duration_ns
    ]
    return f"{line}; try --speedup {_round(min(slower))}" if slower else line


def _separation(
    runs: Sequence[RunRecord], loads: Mapping[str, Load], differ: Mapping[str, float], overloaded: bool
) -> str:
    most = max(differ.values())
    waited = max(load.waited for load in loads.values())
    full = max(load.kv_full for load in loads.values())
    line = f"decisions differ in {most:.1%} of steps; somebody waited in {waited:.1%}; KV full in {full:.1%}"
    if most >= ALIKE:
        return line
    if not differing_settings(runs):
        return f"{line}: the arms have the same policy and settings"
    line = f"{line}: this load cannot separate the arms"
    known = [load.utilization for load in loads.values() if load.utilization]
    if overloaded or not known:
        return line
    faster = _speedup(runs[0]) * TARGET / max(known)
    if faster <= 1.05 * _speedup(runs[0]):
        return f"{line}, near saturation as it is; try other lengths or limits"
    return f"{line}; try --speedup {_round(faster)}"


def _speedup(run: RunRecord) -> float:
    return float(run.workload.get("speedup", 1.0))


def _round(speedup: float) -> str:
    """Two significant digits."""
    return f"{float(f'{speedup:.2g}'):g}"
