"""Service that clients received over time, at the moments of a figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.fairness import Service
from batchwright.lab.run_record import RunRecord

Floats = NDArray[np.float64]

NAMELESS = "no client"


@dataclass(frozen=True, slots=True)
class Served:
    """What each client of a run was served, up to each of some moments.

    Attributes:
        times_s: float64[times].
        clients: names, by service received, the most first.
        total: float64[clients, times]: service so far, as :mod:`batchwright.lab.fairness` counts it.
    """

    times_s: Floats
    clients: list[str]
    total: Floats

    @property
    def gap(self) -> Floats:
        """float64[times]: service of the client served most so far, less that of the one served least."""
        if not self.clients:
            return np.zeros(len(self.times_s))
        gap: Floats = self.total.max(axis=0) - self.total.min(axis=0)
        return gap


def served_by(run: RunRecord, times_ns: NDArray[np.int64]) -> Served:
    """The service of each client of a run at these moments."""
    service = Service.of(run)
    total = service.served[:, np.searchsorted(service.times_ns, times_ns, side="right") - 1]
    rank = np.argsort(-total[:, -1], kind="stable")
    names = [NAMELESS if client is None else client for client in service.clients]
    return Served(times_ns / 1e9, [names[i] for i in rank], total[rank])
