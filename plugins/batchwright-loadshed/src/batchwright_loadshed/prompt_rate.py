"""How many prompt tokens a second leave the queue when it is full."""

from __future__ import annotations


class PromptRate:
    """A moving average over time: what was seen ``half_life_s`` ago counts half.

    Only time in which prompts had to wait counts: an idle engine says nothing of what it could do.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """So many prompt tokens left the queue in this time, while others waited."""
        decay = 0.5 ** (seconds / self._half_life_s)
        self._tokens = self._tokens * decay + num_tokens
        self._seconds = self._seconds * decay + seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Prompt tokens a second; None before anybody had to wait, or while none left the queue."""
        return self._tokens / self._seconds if self._tokens and self._seconds else None
