"""Which rows of a workload wait for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batchwright.errors import WorkloadError, did_you_mean
from batchwright.lab.disjoint import DisjointSets
from batchwright.lab.row import WorkloadRow


@dataclass(frozen=True, slots=True)
class Links:
    """The rows that wait for others, by their places among all rows.

    Attributes:
        num_awaited: of each row that waits, how many it waits for.
        followers: of each row that is waited for, who waits for it, in order.
    """

    num_awaited: dict[int, int]
    followers: dict[int, list[int]]

    @classmethod
    def of(cls, rows: Sequence[WorkloadRow]) -> Links:
        """The links of these rows.

        Raises:
            WorkloadError: two rows have one name, a row waits for one that there is not, or rows wait for each other in
                a circle.
        """
        num_awaited: dict[int, int] = {}
        followers: dict[int, list[int]] = {}
        if not any(row.after for row in rows):
            return cls(num_awaited, followers)
        places: dict[str, int] = {}
        for place, row in enumerate(rows):
            if row.row_id is not None and places.setdefault(row.row_id, place) != place:
                raise WorkloadError(f"{_where(row)}: another row has the id {row.row_id!r} too; give each its own")
        for place, row in enumerate(rows):
            awaited = dict.fromkeys(row.after)
            for name in awaited:
                if name not in places:
                    raise WorkloadError(
                        f"{_where(row)}: it waits for {name!r}, and no row has that id; {did_you_mean(name, places)}"
                    )
                followers.setdefault(places[name], []).append(place)
            if awaited:
                num_awaited[place] = len(awaited)
        return cls(num_awaited, followers)

    def in_order(self, num_rows: int) -> list[int]:
        """Places of all rows, each behind those it waits for; rows in a circle are left out."""
        left = dict(self.num_awaited)
        order = [place for place in range(num_rows) if place not in left]
        for place in order:  # it grows
            for follower in self.followers.get(place, ()):
                left[follower] -= 1
                if not left[follower]:
                    order.append(follower)
        return order

    def groups(self, num_rows: int) -> list[list[int]]:
        """Rows that are linked, directly or over others, together: places in order, by the first of each group."""
        sets = DisjointSets(num_rows)
        for place, behind in self.followers.items():
            for follower in behind:
                sets.join(place, follower)
        return sets.groups()


def arranged(rows: Iterable[WorkloadRow]) -> tuple[WorkloadRow, ...]:
    """Rows in order of arrival; of equals in the order given.

    A row that waits for others arrives when they have arrived and its ``think_s`` has passed, at the earliest: its
    ``arrival_ns`` is raised to that, and it stands behind them.

    Raises:
        WorkloadError: see ``Links.of``, or rows wait for each other in a circle.
    """
    rows = list(rows)
    links = Links.of(rows)
    if not links.num_awaited:
        return tuple(sorted(rows, key=lambda row: row.arrival_ns))
    order = links.in_order(len(rows))
    if len(order) < len(rows):
        stuck = rows[next(iter(set(range(len(rows))) - set(order)))]
        raise WorkloadError(f"{_where(stuck)}: it waits for rows that wait for it; nobody in that circle ever arrives")
    depth = [0] * len(rows)
    for place in order:
        for follower in links.followers.get(place, ()):
            row = rows[follower]
            earliest = rows[place].arrival_ns + row.think_ns
            if earliest > row.arrival_ns:
                rows[follower] = replace(row, arrival_ns=earliest)
            depth[follower] = max(depth[follower], depth[place] + 1)
    return tuple(rows[place] for place in sorted(range(len(rows)), key=lambda p: (rows[p].arrival_ns, depth[p], p)))


def without_strangers(rows: Iterable[WorkloadRow]) -> tuple[WorkloadRow, ...]:
    """The rows, of which none waits any more for one that is not among them."""
    rows = tuple(rows)
    if not any(row.after for row in rows):
        return rows
    known = {row.row_id for row in rows}
    return tuple(
        row if known.issuperset(row.after) else replace(row, after=tuple(name for name in row.after if name in known))
        for row in rows
    )


def _where(row: WorkloadRow) -> str:
    return row.place or (f"row {row.row_id!r}" if row.row_id is not None else "a row")
