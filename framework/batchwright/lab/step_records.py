"""Records of steps, compactly: eleven numbers a step, and no object until somebody asks for one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import StepRecord

FIELDS = tuple(StepRecord.__slots__)
"""Names of the numbers, in their order."""
_NUM = len(FIELDS)
_numbers = attrgetter(*FIELDS)


class StepRecords(Sequence[StepRecord]):
    """A sequence of step records that takes 88 bytes a step."""

    __slots__ = ("_numbers", "extend_numbers")

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self._numbers = array("q")
        self.extend_numbers = self._numbers.extend
        """Takes the numbers of further steps, one behind the other, in the order of ``FIELDS``."""
        for record in records:
            self.append(record)

    def __reduce__(self) -> tuple[Callable[[bytes], StepRecords], tuple[bytes]]:
        return _from_bytes, (self._numbers.tobytes(),)

    def append(self, record: StepRecord) -> None:
        """Take one more."""
        self._numbers.extend(_numbers(record))

    def extend_packed(self, numbers: NDArray[np.int64]) -> None:
        """Take further steps: int64[n, 11], in the order of ``FIELDS``."""
        self._numbers.frombytes(numbers.tobytes())

    def column(self, name: str) -> NDArray[np.int64]:
        """int64[n]: one field of all records."""
        return np.frombuffer(self._numbers, dtype=np.int64)[FIELDS.index(name) :: _NUM].copy()

    def take(self) -> array[int]:
        """The numbers of all, which are forgotten here."""
        taken = self._numbers[:]
        del self._numbers[:]
        return taken

    def __len__(self) -> int:
        return len(self._numbers) // _NUM

    def __iter__(self) -> Iterator[StepRecord]:
        numbers = iter(self._numbers)
        return (StepRecord(*row) for row in zip(*[numbers] * _NUM, strict=True))

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index if index >= 0 else index + len(self)
        if not 0 <= place < len(self):
            raise IndexError(f"step {index} of {len(self)}")
        return StepRecord(*self._numbers[place * _NUM : (place + 1) * _NUM])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StepRecords):
            return self._numbers == other._numbers
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<StepRecords: {len(self)} steps>"


def _from_bytes(numbers: bytes) -> StepRecords:
    records = StepRecords()
    records._numbers.frombytes(numbers)
    return records


def column(steps: Sequence[StepRecord], name: str) -> NDArray[np.int64]:
    """int64[n]: one field of all these records."""
    if isinstance(steps, StepRecords):
        return steps.column(name)
    return np.array([getattr(step, name) for step in steps], dtype=np.int64)
