"""What a run decided in a step, and how a run differs from a plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchwright.testing.gaze import Gaze


@dataclass(frozen=True)
class Decision:
    """What was decided in one step.

    Attributes:
        step: its index.
        batch: request id and tokens, in order.
        preempted, finished: request ids.
        cut: requests of the batch that keep tokens pending.
        is_steady: only decodes, and nobody came, went or was evicted since the last step was built, nor now.
        num_touched: waiting requests that hooks looked at, where that is counted.
        num_waiting: before the step.
        left_out: decodes that did not run, where no prompt was under way, nobody could come in and there was room for
            all of them; None: it was another kind of step.
        is_own: of the policy that is checked; in runs with swaps others decide as well.
    """

    step: int
    batch: tuple[tuple[str, int], ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    cut: tuple[str, ...]
    is_steady: bool
    num_touched: int
    num_waiting: int
    left_out: tuple[str, ...] | None = None
    is_own: bool = True

    @property
    def choice(self) -> tuple[Any, ...]:
        """The part of it that a policy decides."""
        return (self.batch, self.preempted)

    def describe(self) -> str:
        """In words."""
        rows = ", ".join(f"{name}:{tokens}" for name, tokens in self.batch) or "nobody"
        return f"batch {rows}" + (f", evicted {', '.join(self.preempted)}" if self.preempted else "")


@dataclass
class Options:
    """How a run differs from a plain one.

    Attributes:
        is_thorough: every request is compared around every hook.
        fallback: a fault does not end the run; the default policy builds that step.
        aborts: some requests are aborted.
        swaps: the policy comes to a live engine, goes, comes again, and is replaced by a fresh one.
        salt: of hashes and of global chance.
        gaze: counts who is looked at.
        most_steps: the run is over after so many; None: when it is clear that there is no end.
        keeps: weak references to all requests are kept.
        strict: the policy is shown everything read-only.
        repeats: a policy that is stationary is not asked while nothing changes, as in an engine, and steps in which
            nothing can be decided are taken at once, as on a simulator.
    """

    is_thorough: bool = False
    fallback: bool = False
    aborts: bool = False
    swaps: bool = False
    salt: int = 0
    gaze: Gaze | None = None
    most_steps: int | None = None
    keeps: bool = False
    strict: bool = False
    repeats: bool = False
