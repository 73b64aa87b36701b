"""What became of each request in each step, kept for questions and drawn as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from batchwright.request import Request
from batchwright.step import Step

WAITS, COMPUTES, TOKEN, STAYS_OUT, EVICTED, GONE = ".#o_x "
"""How a tape draws a request in a step."""
LEGEND = ". waits   # computes its prompt   o gets a token   _ holds blocks, does not run   x is evicted"
_WIDEST = 100


@dataclass(frozen=True, slots=True)
class TapedStep:
    """One step.

    Attributes:
        number: of the step, from 0; steps in which nobody was there count, and have no record.
        batch: request to tokens computed, in batch order.
        sampled: who got a token, in batch order.
        preempted: who was evicted, in order of eviction.
        finished: who ended.
        num_recomputed: tokens of the batch that had been computed before an eviction.
        free_blocks: when it had ended.
        events: records of what was noted in it, such as a fault of an observer.
        marks: request to how the tape draws it.
    """

    number: int
    batch: dict[str, int]
    sampled: tuple[str, ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    num_recomputed: int
    free_blocks: int
    events: tuple[Mapping[str, Any], ...]
    marks: dict[str, str]


class Tape:
    """What became of each request, step by step; :func:`batchwright.testing.drive` makes one.

    Attributes:
        steps: in order.
        requests: name to request, in order of arrival; refused ones are not here.
        refused: name to the reason that the policy's ``arrival`` gave.
    """

    def __init__(self) -> None:
        self.steps: list[TapedStep] = []
        self.requests: dict[str, Request] = {}
        self.refused: dict[str, str] = {}

    def add(self, number: int, step: Step, rows: Sequence[tuple[str, int]]) -> None:
        """Keep a step that was executed; ``rows`` are the ids and tokens of its batch."""
        batch = dict(rows)
        sampled = tuple(r.request_id for r in step.sampled)
        preempted = tuple(r.request_id for r in step.preempted)
        finished = tuple(r.request_id for r in step.finished)
        marks = {}
        for name, request in self.requests.items():
            if name in batch:
                marks[name] = TOKEN if name in sampled else COMPUTES
            elif not request.is_finished:
                waits = WAITS if request.is_waiting else STAYS_OUT
                marks[name] = EVICTED if name in preempted else waits
        self.steps.append(
            TapedStep(
                number,
                batch,
                sampled,
                preempted,
                finished,
                step.num_recomputed,
                step.free_blocks,
                tuple(step.events),
                marks,
            )
        )

    def tokens(self, name: str) -> list[int]:
        """The steps in which a request got its tokens.

        Raises:
            KeyError: there was no such request.
        """
        self._known(name)
        return [step.number for step in self.steps if name in step.sampled]

    def first_token(self, name: str) -> int:
        """The step in which a request got its first token.

        Raises:
            KeyError: there was no such request, or it got none.
        """
        found = self.tokens(name)
        if not found:
            raise KeyError(f"request {name!r} got no token")
        return found[0]

    def gaps(self, name: str) -> list[int]:
        """Steps from each token of a request to its next; 1 where it never stood still."""
        return [later - earlier for earlier, later in pairwise(self.tokens(name))]

    @property
    def preemptions(self) -> list[tuple[int, str]]:
        """Step and victim of each eviction, in order."""
        return [(step.number, name) for step in self.steps for name in step.preempted]

    @property
    def num_computed(self) -> int:
        """Tokens computed in all, those computed again included."""
        return sum(sum(step.batch.values()) for step in self.steps)

    @property
    def num_recomputed(self) -> int:
        """Tokens computed again because of evictions."""
        return sum(step.num_recomputed for step in self.steps)

    @property
    def num_steps(self) -> int:
        """Steps until the last request had ended."""
        return self.steps[-1].number + 1 if self.steps else 0

    def _known(self, name: str) -> None:
        if name not in self.requests:
            raise KeyError(f"there was no request {name!r}; there were {', '.join(self.requests) or 'none'}")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """The table, up to a hundred steps of it."""
        columns = {step.number: step.marks for step in self.steps}
        width = min(self.num_steps, _WIDEST)
        head = max([4, *map(len, self.requests)])
        ruler = "".join(f"{number:<10}" for number in range(0, width, 10))[: max(width, len(str(width)))]
        yield f"{'step':<{head}}  {ruler}".rstrip()
        for name in self.requests:
            row = "".join(columns.get(number, _NOBODY).get(name, GONE) for number in range(width))
            yield f"{name:<{head}}  {row}".rstrip()
        if self.num_steps > width:
            yield f"and {self.num_steps - width} more steps"
        yield LEGEND


_NOBODY: Mapping[str, str] = {}
