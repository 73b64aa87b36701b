"""Who is offered next, and when: by the times of the workload, or when others have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batchwright.errors import WorkloadError
from batchwright.lab.fitting import fitted
from batchwright.lab.lazy_rows import LazyRows
from batchwright.lab.links import Links
from batchwright.lab.materialize import MODEL, Offer, Offers, longest_of, with_token_ids
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload

if TYPE_CHECKING:
    from batchwright.engine import Engine


class Arrivals:
    """The arrivals of one run.

    An *open loop* offers each row at its time, however far behind the engine is. A row that waits for others is offered
    when they have ended and its ``think_s`` has passed, and not before its time. A *closed loop* of N users pays no
    regard to times: each user offers a row, and the next one when that has ended and the next one's ``think_s`` has
    passed; rows that wait for each other, such as the turns of a session, are one user's, who takes the next ones when
    all of them have ended.

    Call ``start``, then ``take`` while ``next_ns`` is not later than the present; where ``waits``, say ``ended`` of
    every request that has, in order of time.

    Attributes:
        next_ns: when the next request arrives, as far as that is known, in nanoseconds of the engine's clock; None:
            nobody does until somebody has ended.
        waits: whether arrivals follow ends.
        notes: what was done to rows that are too long, in sentences.
    """

    def __init__(self, workload: Workload, offers: Offers, notes: Sequence[str] = ()) -> None:
        """Makes them of a workload and of what makes its requests.

        Raises:
            WorkloadError: rows that wait for others do not fit together, or are read lazily.
        """
        self._offers = offers
        self._rows = workload.rows
        self._users = workload.concurrency
        self.notes = tuple(notes)
        links = _links(workload)
        self.waits = self._users is not None or bool(links.num_awaited)
        self._left = dict(links.num_awaited)
        self._followers = links.followers
        self._latest: dict[int, int] = {}  # of rows that wait for several: when the last of them ended so far
        self._start_ns = 0
        self._known: list[tuple[int, int, WorkloadRow]] = []  # a heap: when, which
        self._coming: Iterator[tuple[int, WorkloadRow]] = iter(())
        self._ahead: tuple[int, int, WorkloadRow] | None = None
        self._offered: set[int] = set()  # where they are not offered in the order of the rows
        self._units = _Units(links, self._rows) if self._users is not None else None
        self.next_ns: int | None = None

    @classmethod
    def at(
        cls,
        engine: Engine,
        workload: Workload,
        declared: str | int = MODEL,
        *,
        seed: int = 0,
        respect_eos: bool = False,
        vocab_size: int | None = None,
    ) -> Arrivals:
        """The arrivals of a workload at an engine: its prompts as token ids of the model, cut or left out as asked.

        Args:
            engine: whose vocabulary and limits hold; the first replica's, of a fleet.
            workload, declared, seed, respect_eos, vocab_size: as of :class:`~batchwright.lab.materialize.Offers`.

        Raises:
            WorkloadError: a prompt cannot be tokenized, or see ``__init__``.
        """
        asked, notes = fitted(with_token_ids(workload, engine.backend), longest_of(engine))
        offers = Offers.to(engine, asked, declared, seed=seed, respect_eos=respect_eos, vocab_size=vocab_size)
        return cls(asked, offers, notes)

    def start(self, now_ns: int) -> None:
        """The run starts now, in nanoseconds of the engine's clock."""
        self._start_ns = now_ns
        if self._units is None:
            self._coming = self._timed()
            self._pull()
        else:
            for _ in range(self._users or 0):
                self._next_unit(now_ns, at_once=True)
        self._look()

    def take(self) -> Offer:
        """The next request; it arrives at ``next_ns``."""
        ahead = self._ahead
        if ahead is not None and (not self._known or ahead < self._known[0]):
            self._pull()
        else:
            ahead = heappop(self._known)
        self._look()
        when, index, row = ahead
        if self.waits:
            self._offered.add(index)
        return self._offers.make(index, row, when)

    def ended(self, index: int, end_ns: int) -> None:
        """A request has ended, at this time, however it did; ``index`` is the place of its row."""
        for follower in self._followers.get(index, ()):
            self._left[follower] -= 1
            latest = self._latest[follower] = max(self._latest.get(follower, 0), end_ns)
            if not self._left[follower]:
                del self._latest[follower]
                row = self._row(follower)
                earliest = 0 if self._units is not None else self._start_ns + row.arrival_ns
                self._know(max(latest + row.think_ns, earliest), follower, row)
        if self._units is not None and self._units.ended(index):
            self._next_unit(end_ns)
        self._look()

    def rest(self, now_ns: int) -> Iterator[Offer]:
        """What was never offered, in the order of the rows; at its own time, or now where that is not known."""
        if not self.waits:
            while self.next_ns is not None:
                yield self.take()
            return
        for index, row in enumerate(self._rows):
            if index not in self._offered:
                planned = 0 if self._units is not None else self._start_ns + row.arrival_ns
                yield self._offers.make(index, row, max(now_ns, planned))
        self._known, self._ahead, self.next_ns = [], None, None

    def _timed(self) -> Iterator[tuple[int, WorkloadRow]]:
        """The rows that wait for nobody."""
        left = self._left
        return ((index, row) for index, row in enumerate(self._rows) if index not in left)

    def _pull(self) -> None:
        found = next(self._coming, None)
        self._ahead = None if found is None else (self._start_ns + found[1].arrival_ns, *found)

    def _know(self, when_ns: int, index: int, row: WorkloadRow) -> None:
        heappush(self._known, (when_ns, index, row))  # no two have one index

    def _next_unit(self, now_ns: int, *, at_once: bool = False) -> None:
        """A user has time for the next rows."""
        assert self._units is not None
        for index, row in self._units.take():
            self._know(now_ns if at_once else now_ns + row.think_ns, index, row)

    def _look(self) -> None:
        times = [one[0] for one in (self._ahead, self._known[0] if self._known else None) if one is not None]
        self.next_ns = min(times, default=None)

    def _row(self, index: int) -> WorkloadRow:
        rows = self._rows
        assert isinstance(rows, tuple)  # rows that wait for others are held
        return rows[index]


def _links(workload: Workload) -> Links:
    rows = workload.rows
    if not isinstance(rows, tuple):
        return Links({}, {})  # LazyRows refuses rows that wait
    links = Links.of(rows)
    if links.num_awaited and len(links.in_order(len(rows))) < len(rows):
        raise WorkloadError(f"workload {workload.name!r} has rows that wait for each other in a circle")
    return links


class _Units:
    """What the users of a closed loop take from: rows, and where rows wait for each other all of these together."""

    def __init__(self, links: Links, rows: tuple[WorkloadRow, ...] | LazyRows) -> None:
        self._links = links
        self._rows = rows
        self._next: Iterator[list[tuple[int, WorkloadRow]]] = iter(())
        self._of: dict[int, int] = {}  # row to its unit, of those under way
        self._num_left: dict[int, int] = {}
        self._num_taken = 0
        self._next = self._singles() if not links.num_awaited else self._groups()

    def _singles(self) -> Iterator[list[tuple[int, WorkloadRow]]]:
        return ([(index, row)] for index, row in enumerate(self._rows))

    def _groups(self) -> Iterator[list[tuple[int, WorkloadRow]]]:
        rows = self._rows
        assert isinstance(rows, tuple)  # rows that wait for others are held
        return ([(index, rows[index]) for index in group] for group in self._links.groups(len(rows)))

    def take(self) -> list[tuple[int, WorkloadRow]]:
        """Rows of the next unit that wait for nobody; empty: there is no further unit."""
        unit = next(self._next, [])
        if unit:
            self._num_taken += 1
            self._num_left[self._num_taken] = len(unit)
            self._of.update(dict.fromkeys((index for index, _ in unit), self._num_taken))
        return [(index, row) for index, row in unit if index not in self._links.num_awaited]

    def ended(self, index: int) -> bool:
        """A row has ended; whether its unit has."""
        unit = self._of.pop(index)
        self._num_left[unit] -= 1
        if self._num_left[unit]:
            return False
        del self._num_left[unit]
        return True
