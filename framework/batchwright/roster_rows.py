"""The rows that decodes on a roster have in its arrays: who is in which, and in which order they were admitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchwright.request import Request
from batchwright.roster_arrays import Rows
from batchwright.roster_tokens import ROW


class RosterRows:
    """The rows of one roster. Who comes and goes is noted, and the order made anew when somebody asks for it.

    Attributes:
        riders: requests by row; None: nobody is in it. It grows, and stays the same list.
        alive: whether somebody is in a row, by row.
        vacant: rows that a newcomer can have.
        gone: rows whose request left, and which the order still names.
        come: rows at the end of the order, which it does not name yet.
        order: intp[n]: rows in order of admission, but for those; never changed in place.
        places: where each of these begins in the ring of tokens.
    """

    def __init__(self) -> None:
        self.riders: list[Request | None] = []
        self.alive: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.clear()

    def clear(self) -> None:
        """Nobody is in any of them."""
        self.vacant = list(range(len(self.riders) - 1, -1, -1))
        self.gone: list[int] = []
        self.come: list[int] = []
        self.set_order(np.zeros(0, dtype=np.intp))

    def make(self, num: int) -> None:
        """Have so many rows."""
        old = len(self.riders)
        self.alive = np.concatenate((self.alive, np.zeros(num - old, dtype=np.bool_)))
        self.riders += [None] * (num - old)
        self.vacant += range(num - 1, old - 1, -1)

    def close_ranks(self) -> None:
        """Make the order anew."""
        order = self.order
        if self.come:
            order = np.concatenate((order, np.array(self.come, dtype=np.intp)))
            self.come = []
        if self.gone:
            order = order[self.alive[order]]
            self.vacant += self.gone
            self.gone = []
        self.set_order(order)

    def set_order(self, order: Rows) -> None:
        """This is the order of admission."""
        self.order = order
        self.places = order * ROW
