"""A fair share for each client: virtual token counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.policy import Params
from batchwright.ranked import Queue, Ranked
from batchwright.request import Request
from batchwright.step import Step
from batchwright_policies.groups import Client, Groups, client_of
from batchwright_policies.virtual_counters import VirtualCounters


class VtcParams(Params):
    """Parameters of :class:`Vtc`."""

    input_weight: float = Field(default=1.0, gt=0, description="What a prompt token counts (the paper's w_p).")
    output_weight: float = Field(default=2.0, gt=0, description="What an output token counts (the paper's w_q).")


class Vtc(Ranked):
    """The client that was served least goes first; who was away gains nothing by it (virtual token counters).

    Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, with its weighted variant. A client
    (``client_id``) is charged for a prompt at its admission and for each output token, divided by its ``weight``. The
    client with the lowest counter goes first; one that comes back is lifted to the lowest of those that wait.

    While two clients have requests waiting, the service that they get differs by at most
    2 · max(w_p · longest prompt, w_q · tokens of the pool), as the paper proves. When blocks run out, the client served
    most loses a request. A step costs O(log clients) for each newcomer it looks at, and O(residents).
    """

    Params = VtcParams
    fair_to_clients = True
    params: VtcParams
    card: ClassVar[Card] = Card(
        source='Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv:2401.00588, Algorithm 2; '
        "its code, Ying1123/VTC-artifact, commit 14c19b7, slora/server/router/vtc_req_queue.py",
        rules={
            "who was not waiting is lifted to the lowest counter of those that are (lines 12-13)": "request_arrived",
            "if nobody is, to that of the last client that left the queue (lines 8-10)": "_note_left",
            "the oldest request of the client with the lowest counter, until one finds no room": "in_order",
            "charged w_p for each prompt token when it is admitted (line 24)": "request_admitted",
            "charged w_q for each output token (line 30)": "step_finished",
            "weighted: charges are divided by the client's weight (section 4.3)": "_input_cost",
        },
        deviations=(
            "who is evicted, for want of blocks, is charged for its prompt once; there nobody ever is",
            "the source's code leaves counters as they are when nobody waits: it lacks lines 8-10",
        ),
        evidence={
            "property tested": "its bound for two backlogged clients (Theorem 4.4), weighted too",
            "from the paper only": "the proof; its rules: compared with its code, no decisions of it were recorded",
        },
    )

    def __init__(self, params: VtcParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._counters = VirtualCounters()
        self._charged: set[Request] = set()  # for their prompt
        self._left = 0.0  # counter of the last client whose last waiting request left the queue

    def make_queue(self) -> Queue:
        """Requests by client."""
        self._clients: Groups[Client] = Groups(client_of, lambda client, _: self._counters.of(client))
        return self._clients

    def rank(self, request: Request) -> float:
        """Its client's counter."""
        return self._counters.of(request.client_id)

    def in_order(self, step: Step) -> Iterator[Request]:
        """The oldest of the client that was served least, each admission charged at once."""
        for request in self._clients.in_order():
            yield request
            if request.num_scheduled:
                self._counters.ahead[request.client_id] += self._input_cost(request)

    def _input_cost(self, request: Request) -> float:
        """Nothing for a prompt that was charged before."""
        cost = self.params.input_weight * request.num_prompt_tokens / request.weight
        return cost if request not in self._charged else 0.0

    def _floor(self) -> float:
        """The lowest counter of a client that waits; if nobody does, of the last that did."""
        return self._counters.of(self._clients.first_group()) if len(self._clients) else self._left

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """All clients begin equal."""
        everybody = (*step.waiting, *step.running)
        self._left = 0.0
        self._counters.begin(everybody)
        self._charged = {r for r in everybody if r.first_scheduled_ns is not None}
        super().policy_attached(step)

    @hookimpl
    def step_started(self, step: Step) -> None:
        """Forget clients that are gone and that the floor has passed: coming back they would be lifted to it."""
        self._counters.ahead.clear()
        if self._counters.are_many:
            self._counters.forget(self._floor())

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """Its client is lifted if none of its requests was waiting."""
        client = request.client_id
        known = self._counters.open(client)
        if client not in self._clients:
            self._counters.served[client] = max(known, self._floor())
        super().request_arrived(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """Its client is charged for the prompt."""
        self._counters.ahead.pop(request.client_id, None)  # its counter says so from now on
        self._counters.served[request.client_id] += self._input_cost(request)
        self._charged.add(request)
        super().request_admitted(request)
        self._note_left(request.client_id)

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """Clients are charged for what was sampled."""
        self._counters.charge_sampled(step.sampled, self.params.output_weight)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It waits no longer; its client may be gone."""
        client = request.client_id
        was_waiting = client in self._clients
        super().request_finished(request)
        self._charged.discard(request)
        self._counters.close(client)
        if was_waiting:
            self._note_left(client)

    def _note_left(self, client: Client) -> None:
        if client not in self._clients:
            self._left = self._counters.served[client]
