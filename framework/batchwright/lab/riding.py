"""When the decodes on an engine's roster got their tokens, and a fingerprint of who they are.

All of them get a token whenever the roster advances. So the ends of these steps are kept once for all, and whoever
leaves takes its part of them along: a step costs the same however many ride.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from batchwright.request import Request
    from batchwright.roster import Roster

_WORD = 2**64 - 1
_NEVER = -1
_MANY = 4096
"""Times from which on it is looked whether anybody needs the first of them."""


def key_of(row: int, num_tokens: int) -> int:
    """What the row of a batch adds to its fingerprint: that of a request with this place, and its tokens."""
    return xxh3_64_intdigest(row.to_bytes(8, "little") + num_tokens.to_bytes(8, "little"))


class Riding:
    """Watches the roster of one engine.

    Attributes:
        roster: None as long as nobody was admitted.
    """

    def __init__(self, keys: Mapping[Request, int], give: Callable[[Request, Sequence[int]], None]) -> None:
        """Makes one.

        Args:
            keys: ``key_of`` each request with one token.
            give: takes the times of a request that leaves the roster.
        """
        self._keys = keys
        self._give = give
        self.roster: Roster | None = None
        self._sum = 0  # of their keys
        self._gone = 0  # of the keys of those who left since the roster advanced
        self._gone_at = 0
        self._times: array[int] = array("q")
        self._first = 0  # number of the advance whose time is the first
        self._num_void = 0  # of the times: steps of which nothing came
        self._num_seen = 0
        self._left: list[tuple[Request, int, int]] = []  # whose last times are not there yet

    def watch(self, roster: Roster) -> None:
        """This is the roster; nobody rides yet."""
        self.roster = roster
        self._first = self._num_seen = roster.steps
        roster.watchers.append(self)

    # What the roster tells ------------------------------------------------------------------------------------

    def entered(self, requests: Sequence[Request]) -> None:
        """See ``Watcher``."""
        keys = self._keys
        for request in requests:
            self._sum += keys.get(request, 0)

    def left(self, request: Request, first: int, last: int) -> None:
        """See ``Watcher``."""
        key = self._keys.get(request, 0)
        self._sum -= key
        if self._gone_at != last:
            self._gone, self._gone_at = 0, last
        self._gone += key
        self._left.append((request, first, last))

    # What the recorder asks -----------------------------------------------------------------------------------

    def num_advances(self) -> int:
        """How often the roster has advanced since it was asked last."""
        roster = self.roster
        if roster is None:
            return 0
        num = roster.steps - self._num_seen
        self._num_seen = roster.steps
        return num

    def sum_of_last(self) -> int:
        """Sum of the keys of those who were there when the roster advanced last, modulo 2^64."""
        if self.roster is not None and self._gone_at == self.roster.steps:
            return (self._sum + self._gone) & _WORD
        return self._sum & _WORD

    def add(self, times: Sequence[int]) -> None:
        """These are the ends of the next advances."""
        self._times.fromlist(times if isinstance(times, list) else list(times))
        if self._left:
            self._give_left()
        if len(self._times) > _MANY:
            self._drop_old()

    def add_one(self, time: int) -> None:
        """``add`` of one."""
        times = self._times
        times.append(time)
        if self._left:
            self._give_left()
        if len(times) > _MANY:
            self._drop_old()

    def skip(self, num_advances: int) -> None:
        """Of so many advances nothing came, or nobody told of them."""
        if num_advances > 0:
            self._times.extend([_NEVER] * num_advances)
            self._num_void += num_advances

    def give_all(self) -> None:
        """Give the times to those who still ride, as far as these are there."""
        self._give_left()
        for request in self.roster.members if self.roster is not None else ():
            self._give(request, self._between(request._entry - request._offset, None))
        self._times, self._first = array("q"), self._num_seen

    def _give_left(self) -> None:
        end, later = self._first + len(self._times), []
        for request, first, last in self._left:
            if last > end:
                later.append((request, first, last))
            elif last > first:
                self._give(request, self._between(first, last))
        self._left = later

    def _between(self, first: int, last: int | None) -> Sequence[int]:
        times = self._times[first - self._first : None if last is None else last - self._first]
        return [time for time in times if time != _NEVER] if self._num_void else times

    def _drop_old(self) -> None:
        """Those times that nobody who rides needs."""
        roster = self.roster
        if roster is None:
            return
        needed = [first for _, first, _ in self._left]
        needed += [request._entry - request._offset for request in roster.members]
        old = min(needed, default=self._first + len(self._times)) - self._first
        if 2 * old > len(self._times):
            self._num_void -= self._times[:old].count(_NEVER) if self._num_void else 0
            del self._times[:old]
            self._first += old
