"""Records of steps, compactly: eleven numbers a step, and no object until somebody asks for one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import StepRecord

FIELDS = tuple(StepRecord.__slots__)
"""Names of the numbers, in their order."""
_NUM = len(FIELDS)
_numbers = attrgetter(*FIELDS)


Stretch = tuple[int, int, Sequence[int], int, int, int, int, int, int, Sequence[int], int]
"""Steps of which most is alike: index of the first, its start, the ends of all (each is the start of the next), prompt
tokens, decodes, evicted and waiting requests, residents after all but the last, and after the last, free blocks after
each, and the size of the batch."""
_MANY = 1024
"""Stretches, or steps, from which on they are packed."""
_INDEX, _START, _END, _RUNNING, _FREE = map(FIELDS.index, ("index", "start_ns", "end_ns", "num_running", "free_blocks"))


class StepRecords(Sequence[StepRecord]):
    """A sequence of step records that takes 88 bytes a step."""

    __slots__ = ("_loose", "_packed", "_singles")

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self._packed = array("q")
        # Behind those; one of the two is empty.
        self._loose: list[Stretch] = []
        self._singles: list[int] = []
        for record in records:
            self.append(record)

    def __reduce__(self) -> tuple[Callable[[bytes], StepRecords], tuple[bytes]]:
        return _from_bytes, (self._numbers.tobytes(),)

    def append(self, record: StepRecord) -> None:
        """Take one more."""
        self._numbers.extend(_numbers(record))

    def extend_numbers(self, numbers: Iterable[int]) -> None:
        """Take the numbers of further steps, one behind the other, in the order of ``FIELDS``."""
        self._numbers.extend(numbers)

    def extend_packed(self, numbers: NDArray[np.int64]) -> None:
        """Take further steps: int64[n, 11], in the order of ``FIELDS``."""
        self._numbers.frombytes(numbers.tobytes())

    def extend_one(
        self,
        index: int,
        start_ns: int,
        end_ns: int,
        num_prefill_tokens: int,
        num_decodes: int,
        num_preempted: int,
        num_waiting: int,
        num_running: int,
        free_blocks: int,
        batch_size: int,
    ) -> None:
        """Take one more step of replica 0."""
        if self._loose:
            counts = (num_prefill_tokens, num_decodes, num_preempted, num_waiting, num_running, num_running)
            self.extend_stretch((index, start_ns, (end_ns,), *counts, (free_blocks,), batch_size))
            return
        singles = self._singles
        singles += (
            index,
            start_ns,
            end_ns,
            num_prefill_tokens,
            num_decodes,
            num_preempted,
            num_waiting,
            num_running,
            free_blocks,
            0,
            batch_size,
        )
        if len(singles) > _NUM * _MANY:
            self._pack_singles()

    def extend_stretch(self, stretch: Stretch) -> None:
        """Take further steps of replica 0."""
        if self._singles:
            self._pack_singles()
        self._loose.append(stretch)
        if len(self._loose) > _MANY:
            self._pack()

    @property
    def _numbers(self) -> array[int]:
        """The numbers of all."""
        if self._singles:
            self._pack_singles()
        elif self._loose:
            self._pack()
        return self._packed

    def _pack_singles(self) -> None:
        self._packed.fromlist(self._singles)
        self._singles = []

    def _pack(self) -> None:
        firsts, starts, ends, prefills, decodes, preempted, waiting, running, left, free, sizes = zip(
            *self._loose, strict=True
        )
        self._loose = []
        lengths = np.fromiter(map(len, ends), dtype=np.int64, count=len(ends))
        lasts = np.cumsum(lengths) - 1
        begins = lasts - lengths + 1
        num, none = int(lasts[-1]) + 1, (0,) * len(ends)
        alike = (firsts, starts, none, prefills, decodes, preempted, waiting, running, none, none, sizes)
        rows = np.array(alike, dtype=np.int64).T.repeat(lengths, axis=0)
        rows[:, _INDEX] += np.arange(num) - np.repeat(begins, lengths)
        rows[:, _END] = np.fromiter(chain.from_iterable(ends), dtype=np.int64, count=num)
        rows[1:, _START] = rows[:-1, _END]
        rows[begins, _START] = starts
        rows[lasts, _RUNNING] = left
        rows[:, _FREE] = np.fromiter(chain.from_iterable(free), dtype=np.int64, count=num)
        self._packed.frombytes(rows.tobytes())

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
