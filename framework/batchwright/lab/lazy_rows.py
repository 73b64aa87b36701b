"""Rows of a workload that are read again each time, and never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow


class LazyRows:
    """Rows in order of arrival, made anew whenever they are iterated.

    Args:
        make: gives them; the same each time.
        num: how many there are; counted, by reading them once, without it.

    Attributes:
        last: the last of them; None where that was not looked at yet.

    Raises:
        WorkloadError: they are not in order of arrival, or one waits for others: then they must be in memory.
    """

    def __init__(self, make: Callable[[], Iterator[WorkloadRow]], num: int | None = None) -> None:
        self._make = make
        self.last: WorkloadRow | None = None
        self._num = num if num is not None else self._count()

    def _count(self) -> int:
        num, latest = 0, 0
        for row in self._make():
            if row.arrival_ns < latest:
                raise WorkloadError(
                    f"row {num + 1} arrives at {row.arrival_ns / 1e9} s, before the row ahead of it: a workload that "
                    "is read lazily must be in order of arrival; sort it, or read it as a whole"
                )
            if row.after:
                raise WorkloadError(
                    f"row {num + 1} waits for others: such rows are not read lazily; read the workload as a whole"
                )
            num, latest, self.last = num + 1, row.arrival_ns, row
        return num

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[WorkloadRow]:
        return self._make()

    def first(self, num: int) -> LazyRows:
        """The first so many."""
        return LazyRows(lambda: islice(self._make(), num), min(num, self._num))

    def each(self, change: Callable[[WorkloadRow], WorkloadRow]) -> LazyRows:
        """What a function makes of each."""
        return LazyRows(lambda: map(change, self._make()), self._num)

    def only(self, keep: Callable[[WorkloadRow], bool], num: int | None = None) -> LazyRows:
        """Those of which a function says so; ``num`` is how many that are."""
        return LazyRows(lambda: filter(keep, self._make()), num)
