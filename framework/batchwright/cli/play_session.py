"""Going through a run: forth, back, and from any step on under another policy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from batchwright.active_policy import ActivePolicy
from batchwright.cli.play_stage import Stage
from batchwright.lab.interrupts import Interrupts
from batchwright.trace import TracedStep

KEPT = 300
"""Steps that are kept to go back to; an earlier one is played again from the start."""


@dataclass(frozen=True)
class Frame:
    """One step as it is shown.

    Attributes:
        place: how many steps came before it.
        step: the step.
        refused: who was refused before it, and why.
        next_policy: who decides the next step, where that is another policy than decided this one; else empty.
        is_last: the run ends with it.
    """

    place: int
    step: TracedStep
    refused: tuple[tuple[str, str], ...]
    next_policy: str = ""
    is_last: bool = False


class Playback:
    """A run in which one can go back and forth.

    Swapping the policy changes all that follows, and going back past the step of a swap undoes it. Since a run follows
    from its input, an earlier step is had by playing the run again.
    """

    def __init__(self, make_stage: Callable[[], Stage], make_policy: Callable[[str], ActivePolicy]) -> None:
        """Takes what makes the run from its start, and a policy from what somebody typed.

        Raises:
            BatchwrightError: the run cannot be made.
        """
        self._make_stage = make_stage
        self._make_policy = make_policy
        self._stage = make_stage()
        self._played = 0  # steps of the stage so far
        self._frames: OrderedDict[int, tuple[TracedStep, tuple[tuple[str, str], ...]]] = OrderedDict()
        self._swaps: list[tuple[int, str]] = []  # after the step at this place, this policy decides
        self._end: int | None = None  # number of steps, once it is known
        self._place = 0

    def close(self) -> None:
        """Free what the run holds."""
        self._stage.close()

    @property
    def frame(self) -> Frame | None:
        """The present step; None where the run has no step at all."""
        if self._place not in self._frames:
            self._play(self._place)
        if self._place not in self._frames:
            return None
        step, refused = self._frames[self._place]
        swapped = self._swaps[-1][1] if self._swaps and self._swaps[-1][0] == self._place else ""
        return Frame(self._place, step, refused, swapped, self._end is not None and self._place == self._end - 1)

    def next(self) -> str:
        """One step forth; returns what is to be said of it, empty if nothing."""
        return self.jump(self._place + 1)

    def back(self) -> str:
        """One step back, or, where the policy was swapped after this step, before the swap."""
        if self._swaps and self._swaps[-1][0] == self._place:
            _, policy = self._swaps.pop()
            self._forget_after(self._place)
            return f"undone: {policy} does not decide from here on"
        if not self._place:
            return "this is the first step"
        self._place -= 1
        return ""

    def jump(self, place: int) -> str:
        """To a step by its place; to the last one where there are fewer."""
        if place < self._place:
            self._place = max(0, place)
            if self._swaps and self._swaps[-1][0] > self._place:
                while self._swaps and self._swaps[-1][0] > self._place:
                    self._swaps.pop()
                self._forget_after(self._place)
                return "going back past a swap undid it"
            return ""
        before, said = self._place, self._play(place)
        if place in self._frames:
            self._place = place
        elif self._end is not None:
            self._place = max(before, self._end - 1)
            return said or f"the run ends with step {self._end - 1}"
        else:
            self._place = self._played - 1
        return said

    def end(self) -> str:
        """To the last step."""
        return self.jump(10**12)

    def swap(self, text: str) -> str:
        """Another policy decides from the next step on.

        Raises:
            BatchwrightError: there is no such policy, or it cannot serve here; nothing has changed.
        """
        policy = self._make_policy(text)
        if self._played != self._place + 1:  # whether it can serve depends on who is there
            self._restart()
            while self._played <= self._place:
                self._advance()
        self._stage.swap(policy)
        self._forget_after(self._place, keep_stage=True)
        self._swaps.append((self._place, text))
        return f"from the next step on {text} decides; back undoes it"

    def _forget_after(self, place: int, *, keep_stage: bool = False) -> None:
        for later in [p for p in self._frames if p > place]:
            del self._frames[later]
        self._end = None
        if not keep_stage:
            self._restart()

    def _restart(self) -> None:
        self._stage.close()
        self._stage = self._make_stage()
        self._played = 0

    def _play(self, place: int) -> str:
        """Play until the step at a place is kept; stops before where somebody interrupts, or a policy breaks a rule."""
        if place in self._frames:
            return ""
        if self._end is not None and place >= self._end:
            place = self._end - 1  # it may have to be played again
            if place in self._frames:
                return ""
        if self._played > place:
            self._restart()
        with Interrupts() as interrupts:
            while self._played <= place:
                step = self._advance()
                if step is None:
                    self._end = self._played
                    return ""
                if self._played <= place:
                    if interrupts.asked:
                        return "stopped"
                    if step.is_undone and self._played > self._place + 1:
                        return f"stopped: the policy broke a rule in step {step.index}"
        return ""

    def _advance(self) -> TracedStep | None:
        step = self._stage.advance()
        if step is None:
            return None
        self._frames[self._played] = (step, tuple(self._stage.refused))
        self._frames.move_to_end(self._played)
        while len(self._frames) > KEPT:
            self._frames.popitem(last=False)
        for at, text in self._swaps:
            if at == self._played:
                self._stage.swap(self._make_policy(text))
        self._played += 1
        return step
