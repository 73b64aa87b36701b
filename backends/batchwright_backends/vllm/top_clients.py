"""Which clients have series of their own: those who got most service lately. The others are counted together."""

from __future__ import annotations

OTHER = "other"
"""Whose service is counted who is not among the first."""

_HALF_LIFE_S = 60.0
_BETTER = 2.0
"""So many times as much service somebody must have got lately to take another's place."""
_REMEMBERED = 16
"""Clients that are remembered for each that is named."""


class TopClients:
    """Names for series, so that there are never more of them than were asked for, whoever makes up names.

    A place that is free goes to the first who comes. Once a minute, whoever got twice the service of one that has a
    place takes it. A series of a client thus begins when it is named, and ends when it is not; what it got before and
    after is counted under ``other``.

    Args:
        most: clients that are named at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[str, None] = {}
        self._lately: dict[str, float] = {}
        self._next_s = _HALF_LIFE_S

    def label(self, client: str | None, num_tokens: int) -> str:
        """Under which name service is counted; who says nobody is counted under an empty one."""
        if client is None:
            return ""
        self._lately[client] = self._lately.get(client, 0.0) + num_tokens
        if client in self._named:
            return client
        if len(self._named) < self._most:
            self._named[client] = None
            return client
        return OTHER

    def settle(self, now_s: float) -> list[str]:
        """Once a minute, give places anew.

        Args:
            now_s: seconds since the start.

        Returns:
            Whose series end.
        """
        if now_s < self._next_s:
            return []
        self._next_s = now_s + _HALF_LIFE_S
        lately = self._lately
        gone: list[str] = []
        coming = sorted((c for c in lately if c not in self._named), key=lambda c: -lately[c])
        leaving = sorted(self._named, key=lambda c: lately.get(c, 0.0))
        for one, other in zip(coming, leaving, strict=False):
            if lately[one] <= _BETTER * lately.get(other, 0.0):
                break
            del self._named[other]
            self._named[one] = None
            gone.append(other)
        kept = {*self._named, *coming[: _REMEMBERED * self._most]}
        self._lately = {client: tokens / 2 for client, tokens in lately.items() if client in kept and tokens >= 1}
        return gone
