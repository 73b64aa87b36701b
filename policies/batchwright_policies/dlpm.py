"""Longest cached prefix first among clients that are not in deficit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.policy import Params
from batchwright.ranked import Queue, Ranked
from batchwright.request import Request
from batchwright.step import Step
from batchwright_policies.groups import Client, Groups, client_of


class DlpmParams(Params):
    """Parameters of :class:`Dlpm`."""

    quantum: float = Field(
        default=2000.0,
        gt=0,
        description="Service that each client is granted a round. Small: fair, as vtc; large: local, as lpm.",
    )
    input_weight: float = Field(default=1.0, gt=0, description="What a computed prompt token counts (w_e).")
    output_weight: float = Field(default=2.0, gt=0, description="What an output token counts (w_q).")
    scan: int = Field(default=128, ge=1, description="Waiting requests whose prefixes a step compares.")


class Dlpm(Ranked):
    """By cached prefix among clients with credit; when nobody has any, each is granted a quantum (deficit LPM).

    Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025, algorithm DLPM. A client is charged for
    the prompt tokens computed, so not for cached ones, and for its output, divided by its ``weight``; while it owes,
    its requests are passed over. The lead of one client over another is bounded by the quantum.

    Compared are the oldest requests of each client, ``scan`` in all, from the client with the most credit on. When
    blocks run out, whoever belongs to the client with the least credit is evicted. A step costs O(log clients), and in
    one in which there is room at most ``scan`` prefixes are looked up and sorted.
    """

    Params = DlpmParams
    fair_to_clients = True
    params: DlpmParams
    card: ClassVar[Card] = Card(
        source='Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025, arXiv:2501.14312, algorithm DLPM',
        rules={
            "waiting requests by matched prefix, the longest first": "in_order",
            "a client without credit is passed over": "in_order",
            "when no waiting client has credit, each gets a quantum": "_grant",
            "charged for the extended tokens when admitted": "request_admitted",
            "charged for each output token": "step_finished",
        },
        deviations=(
            "a client that has no request left is forgotten, debt and credit: as in deficit round robin",
            "a bounded number of requests is compared, the same number of each client",
            "a quantum is granted to clients that wait; in the implementation compared, to all that owe",
            "one engine: no distribution over workers (D2LPM)",
        ),
        evidence={
            "property tested": "a client's lead is bounded where lpm's is not; more cached tokens than vtc",
            "from the paper only": "its rules: compared with an implementation by others (tazjin/sglang, "
            "commit b5c96f5, python/sglang/srt/managers/fair_scheduler.py); its proofs; D2LPM: left out",
        },
    )

    def __init__(self, params: DlpmParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._served: dict[Client, float] = {}  # service less what was granted: minus the credit
        self._open: Counter[Client] = Counter()  # unfinished requests

    def make_queue(self) -> Queue:
        """Requests by client."""
        self._clients: Groups[Client] = Groups(client_of, lambda client, _: self._served.get(client, 0.0))
        return self._clients

    def rank(self, request: Request) -> float:
        """What its client owes."""
        return self._served.get(request.client_id, 0.0)

    def in_order(self, step: Step) -> Iterator[Request]:
        """Requests of clients with credit by cached prefix; then those of clients that are granted a quantum."""
        cached = {request: step.num_cached(request) for request in self._clients.oldest(self.params.scan)}
        left = sorted(cached, key=lambda r: (-cached[r], r.arrival_index))
        charging = dict.fromkeys((r.client_id for r in left), 0.0)
        while left:
            passed = []
            for request in left:
                client = request.client_id
                if self._served.get(client, 0.0) + charging[client] >= 0:
                    passed.append(request)
                    continue
                yield request
                if request.num_scheduled:
                    charging[client] += self._input_cost(request, cached[request])
            left = passed
            if left:
                self._grant({r.client_id for r in left}, charging)

    def _grant(self, clients: set[Client], charging: Mapping[Client, float]) -> None:
        """Grant clients that owe so many quanta that one of them has credit."""
        least = min(self._served.get(client, 0.0) + charging[client] for client in clients)
        granted = (least // self.params.quantum + 1) * self.params.quantum
        for client in clients:
            self._served[client] = self._served.get(client, 0.0) - granted
            self._clients.rerank(client)

    def _input_cost(self, request: Request, num_cached: int) -> float:
        return self.params.input_weight * (request.num_tokens - num_cached) / request.weight

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """All clients begin equal."""
        self._open = Counter(r.client_id for r in (*step.waiting, *step.running))
        self._served = dict.fromkeys(self._open, 0.0)
        super().policy_attached(step)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """Its client is known from now on."""
        self._open[request.client_id] += 1
        self._served.setdefault(request.client_id, 0.0)
        super().request_arrived(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """Its client is charged for what the cache leaves to compute."""
        self._served[request.client_id] += self._input_cost(request, request.num_cached)
        super().request_admitted(request)

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """Clients are charged for what was sampled."""
        served, weight = self._served, self.params.output_weight
        for request in step.sampled:
            if request.client_id in served:  # else that was the last token of the last one
                served[request.client_id] += weight / request.weight

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """A client without requests is forgotten."""
        super().request_finished(request)
        self._open[request.client_id] -= 1
        if not self._open[request.client_id]:
            del self._open[request.client_id], self._served[request.client_id]
