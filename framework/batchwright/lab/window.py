"""Warm-up and cool-down: which requests of a run count, and over which stretch of it rates are taken.

A request belongs to the window by when it arrives, not by when it ends: who is left out is then the same in every arm.
(By their ends, the slower arm would lose its slowest requests.) Those that are left out run like the others; they are
the load that the others meet.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from batchwright.errors import WorkloadError
from batchwright.lab.step_records import FIELDS, StepRecords

if TYPE_CHECKING:
    from batchwright.lab.run_record import RunRecord
    from batchwright.lab.workload import Workload

_WRITTEN = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>s|%|)")


class Window(NamedTuple):
    """What is left out at both ends of a run.

    Attributes:
        warmup: ``10%``: that share of the requests, in order of arrival; ``30s``: those that arrive in the first 30
            seconds of the run.
        cooldown: ``10%``: the last of them; ``30s``: those that arrive within 30 seconds of the last arrival.
    """

    warmup: str = "0s"
    cooldown: str = "0s"

    @classmethod
    def parse(cls, warmup: str | float | None = None, cooldown: str | float | None = None) -> Window | None:
        """A window from what a user wrote; None where nothing is left out.

        Args:
            warmup, cooldown: ``10%``, or seconds (``30``, ``30s``).

        Raises:
            WorkloadError: one of them is neither, or both take all requests.
        """
        window = cls(_checked("warmup", warmup), _checked("cooldown", cooldown))
        if window == cls():
            return None
        shares = [_read(text)[0] for text in window if text.endswith("%")]
        if sum(shares) >= 100:
            raise WorkloadError(
                f"warmup {window.warmup} and cooldown {window.cooldown} leave no request; give less than 100% in all"
            )
        return window

    def places(self, arrivals_ns: Sequence[int]) -> tuple[int, int]:
        """Which requests count: from the first place up to, and without, the second.

        Args:
            arrivals_ns: of all requests, in order.

        Raises:
            WorkloadError: no request is left.
        """
        num = len(arrivals_ns)
        in_seconds = any(text.endswith("s") and text != "0s" for text in self)
        if in_seconds and any(one > other for one, other in pairwise(arrivals_ns)):
            raise WorkloadError(self._in_seconds())
        number, unit = _read(self.warmup)
        first = math.ceil(num * number / 100) if unit == "%" else bisect_left(arrivals_ns, number * 1e9)
        number, unit = _read(self.cooldown)
        if unit == "%":
            stop = num - math.ceil(num * number / 100)
        else:
            stop = bisect_right(arrivals_ns, arrivals_ns[-1] - number * 1e9) if num and number else num
        if first >= stop:
            span = (arrivals_ns[-1] - arrivals_ns[0]) / 1e9 if num else 0.0
            raise WorkloadError(
                f"warmup {self.warmup} and cooldown {self.cooldown} leave no request of {num}, which arrive within "
                f"{span:.1f} s; give less, or a longer workload"
            )
        return first, stop

    def check(self, workload: Workload) -> None:
        """Whether it leaves a request of a workload, before anything runs.

        Raises:
            WorkloadError: it leaves none, or is in seconds where arrivals follow the run.
        """
        if not isinstance(workload.rows, tuple):
            return
        if workload.arrivals == "open":
            self.places([row.arrival_ns for row in workload.rows])
        elif any(text.endswith("s") and text != "0s" for text in self):
            raise WorkloadError(self._in_seconds())

    def _in_seconds(self) -> str:
        return (
            f"warmup {self.warmup} and cooldown {self.cooldown}: requests of this workload arrive when others have "
            "ended, at other times in each arm; give a share of them, as in 10%"
        )

    def __str__(self) -> str:
        said = [
            f"the {where} {text}" for where, text in (("first", self.warmup), ("last", self.cooldown)) if text != "0s"
        ]
        return " and ".join(said)


def _checked(name: str, value: str | float | None) -> str:
    text = "0" if value is None else str(value).strip()
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise WorkloadError(f"{name} is {value!r}; expected seconds or a share of the requests, as in 30s or 10%")
    number = float(match["number"])
    return f"{number:g}{match['unit'] or 's'}" if number else "0s"


def _read(text: str) -> tuple[float, str]:
    unit = text[-1]
    return float(text[:-1]), unit


def measured(run: RunRecord) -> RunRecord:
    """The run as far as it counts: the requests and the steps of its window, over the window's length.

    Times still count from the start of the run. A run without a window is returned as it is.

    Raises:
        WorkloadError: the window leaves no request.
    """
    if run.window is None:
        return run
    first, stop = run.window.places([o.arrival_ns for o in run.offered])
    begin, end = _span(run, first, stop)
    all_steps = run.steps if isinstance(run.steps, StepRecords) else StepRecords(run.steps)
    starts = all_steps.column("start_ns")
    inside = (starts >= begin) & (starts < end)
    steps = StepRecords()
    steps.extend_packed(np.stack([all_steps.column(name)[inside] for name in FIELDS], axis=1))
    batches = run.batches[:0]
    batches.frombytes(np.frombuffer(run.batches, dtype=np.uint64)[inside].tobytes())
    return replace(
        run,
        offered=run.offered[first:stop],
        requests=run.requests[first:stop],
        steps=steps,
        batches=batches,
        duration_ns=end - begin,
        window=None,
    )


def throughput(run: RunRecord) -> dict[str, float | None]:
    """Requests and tokens a second in the window, whoever they are of, under the names of the metrics.

    Of requests that finished, in the end: those whose end falls into the window; their output tokens that came in it;
    and their prompts, where the first output token came in it. An arm that carries work out of the warm-up carries
    other work into the cool-down.
    """
    window = run.window if run.window is not None else Window()
    begin, end = _span(run, *window.places([o.arrival_ns for o in run.offered]))
    finished = [r for r in run.requests if r.status == "finished" and len(r.token_times_ns)]
    first = np.array([r.token_times_ns[0] for r in finished], dtype=np.int64)
    last = np.array([r.token_times_ns[-1] for r in finished], dtype=np.int64)
    prompts = np.array([r.num_prompt_tokens for r in finished], dtype=np.int64)
    times = np.concatenate([np.frombuffer(r.token_times_ns, dtype=np.int64) for r in finished] or [first])
    took = (end - begin) / 1e9

    def within(moments: np.ndarray) -> np.ndarray:
        return (moments > begin) & (moments <= end)

    num_requests = int(within(last).sum())
    output = int(within(times).sum())
    prompt = int(prompts[within(first)].sum())
    counts = {"request": num_requests, "output": output, "total_token": prompt + output}
    return {f"{name}_throughput": count / took if took > 0 else None for name, count in counts.items()}


def _span(run: RunRecord, first: int, stop: int) -> tuple[int, int]:
    """Nanoseconds between which rates are taken: from where warm-up ends to where cool-down begins, or the run ends."""
    begin = min(o.arrival_ns for o in run.offered[first:stop]) if first else 0
    end = min((o.arrival_ns for o in run.offered[stop:]), default=run.duration_ns)
    return begin, max(begin, end)
