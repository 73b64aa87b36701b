"""Token ids: packed as C ints, and a read-only window on them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import InvalidRequestError

Prompt = Sequence[int] | NDArray[np.integer[Any]]
"""Token ids, as anything that holds ints."""


class DeferredTokens:
    """A prompt whose token ids are made when somebody reads them: of a simulated one most often nobody does.

    Attributes:
        vocab_size: they are in ``range(vocab_size)``.
        make: gives them, int32[len], the same whenever it is called.
    """

    __slots__ = ("_num", "make", "vocab_size")

    def __init__(self, num: int, vocab_size: int, make: Callable[[], NDArray[np.int32]]) -> None:
        """Takes how many they are, and what makes them."""
        self._num = num
        self.vocab_size = vocab_size
        self.make = make

    def __len__(self) -> int:
        return self._num


class TokenIds(Sequence[int]):
    """A read-only window on token ids; slicing copies, nothing else does."""

    __slots__ = ("_start", "_stop", "_tokens")

    def __init__(self, tokens: array[int], start: int, stop: int) -> None:
        self._tokens = tokens
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._tokens[self._start : self._stop][index].tolist()
        n = self._stop - self._start
        if not -n <= index < n:
            raise IndexError(f"token {index} of {n}")
        return self._tokens[self._start + index + (n if index < 0 else 0)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens[self._start : self._stop])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])


def pack_tokens(token_ids: Prompt, field: str = "prompt_token_ids") -> array[int]:
    """Token ids as a compact array of C ints.

    Raises:
        InvalidRequestError: there are none, or one is not an int in [0, 2^31).
    """
    try:
        if isinstance(token_ids, (str, bytes, bytearray)):
            raise TypeError
        if isinstance(token_ids, np.ndarray) and token_ids.dtype.kind in "iu" and token_ids.ndim == 1:
            if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < 2**31:
                raise OverflowError
            tokens = array("i", token_ids.astype(np.int32).tobytes())
        else:
            tokens = array("i", token_ids)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequestError(f"{field} must be ints in [0, 2^31), and some are not") from None
    if not tokens:
        raise InvalidRequestError(f"{field} is empty: a prompt has at least one token")
    numbers = np.frombuffer(tokens, dtype=np.int32)
    if np.bitwise_or.reduce(numbers) < 0:  # the sign of any
        lowest = int(numbers.min())
        raise InvalidRequestError(f"{field} must be ints in [0, 2^31), and {lowest} is among them")
    return tokens
