"""Things that belong together, found pair by pair."""

from __future__ import annotations


class DisjointSets:
    """Sets of the numbers ``0 .. num - 1``, each alone at first (union-find)."""

    def __init__(self, num: int) -> None:
        self._leader = list(range(num))

    def _find(self, one: int) -> int:
        leader = self._leader
        while leader[one] != one:
            leader[one] = leader[leader[one]]
            one = leader[one]
        return one

    def join(self, one: int, other: int) -> None:
        """These two belong together."""
        one, other = self._find(one), self._find(other)
        self._leader[max(one, other)] = min(one, other)

    def groups(self) -> list[list[int]]:
        """The sets, each in order, by the first of each."""
        found: dict[int, list[int]] = {}
        for one in range(len(self._leader)):
            found.setdefault(self._find(one), []).append(one)
        return list(found.values())
