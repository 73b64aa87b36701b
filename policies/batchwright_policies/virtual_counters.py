"""What clients were served, in virtual tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from batchwright.request import Request
from batchwright_policies.groups import Client


class VirtualCounters:
    """A counter for each client that has requests, and of others while it still matters.

    Attributes:
        served: client to what it was charged so far.
        ahead: client to what it will be charged for admissions of the step being built.
    """

    def __init__(self) -> None:
        """Nobody is known."""
        self.served: dict[Client, float] = {}
        self.ahead: defaultdict[Client, float] = defaultdict(float)
        self._open: Counter[Client] = Counter()  # unfinished requests
        self._many = 100  # counters: look then whether some can be forgotten
        self._sampled: Sequence[Request] = ()  # of the last step, where it may be that of the next one
        self._charges: dict[Client, float] = {}  # for that

    def of(self, client: Client) -> float:
        """What a client was charged, and will be for the step being built."""
        return self.served.get(client, 0.0) + self.ahead.get(client, 0.0)

    def begin(self, requests: Iterable[Request]) -> None:
        """All clients of these requests begin equal."""
        self._open = Counter(request.client_id for request in requests)
        self.served = dict.fromkeys(self._open, 0.0)
        self.ahead.clear()

    def open(self, client: Client) -> float:
        """A client has one more unfinished request; its counter."""
        self._open[client] += 1
        return self.served.setdefault(client, 0.0)

    def close(self, client: Client) -> None:
        """A client has one less."""
        self._sampled, self._charges = (), {}
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def charge_sampled(self, sampled: Sequence[Request], weight: float) -> None:
        """Charge clients for the output tokens of a step: ``weight`` for each, over that of its request."""
        if not isinstance(sampled, tuple) or sampled is not self._sampled:
            charges: dict[Client, float] = defaultdict(float)
            for request in sampled:
                charges[request.client_id] += weight / request.weight
            self._sampled, self._charges = sampled, charges
        # Else the same requests: a tuple stays as it is. Sums are added, so that rounding is the same either way.
        served = self.served
        for client, charge in self._charges.items():
            served[client] += charge

    @property
    def are_many(self) -> bool:
        """Whether it is worth while to look whom to forget."""
        return len(self.served) > self._many

    def forget(self, floor: float) -> None:
        """Forget clients that are gone and whose counter is not above ``floor``."""
        self.served = {c: n for c, n in self.served.items() if c in self._open or n > floor}
        self._many = 2 * len(self.served) + 100
