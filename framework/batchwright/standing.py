"""What follows from a request's tokens and state, whoever keeps them: the core, or another scheduler beside it."""

from __future__ import annotations

from typing import Protocol

NEW, WAITING, RESIDENT, PREEMPTED, FINISHED = range(5)
"""States of a request. ``PREEMPTED`` lasts from its eviction to the end of the step, then it waits again."""


class _Kept(Protocol):
    """What is kept of each request."""

    arrival_ns: int
    num_prompt_tokens: int
    _state: int

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_computed(self) -> int: ...


class Standing:
    """Where a request stands; for classes that keep the rest."""

    __slots__ = ()

    @property
    def num_pending(self: _Kept) -> int:
        """Known tokens whose K and V are not computed; 1 for a decode."""
        return self.num_tokens - self.num_computed

    @property
    def num_output_tokens(self: _Kept) -> int:
        """Output tokens so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_waiting(self: _Kept) -> bool:
        """It holds no blocks, and is not finished."""
        return self._state in (WAITING, PREEMPTED)

    @property
    def is_resident(self: _Kept) -> bool:
        """It holds blocks (or is being given them in this step)."""
        return self._state == RESIDENT

    @property
    def is_finished(self: _Kept) -> bool:
        """It ended, for whatever reason."""
        return self._state == FINISHED

    @property
    def arrival_s(self: _Kept) -> float:
        """When it arrived, in seconds of the clock of whoever schedules it."""
        return self.arrival_ns / 1e9
