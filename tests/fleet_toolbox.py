"""What tests of fleets share: a fleet on fake backends, a driver, and an observer that knows where it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchwright import EngineConfig, Fleet, Request, Router, hookimpl
from batchwright.fleet.fleet import ARRIVAL
from batchwright.fleet.view import FleetView
from batchwright.plugins import load_plugins
from fake_backend import FakeBackend
from toolbox import check_empty

MS = 1_000_000
INSTALLED = load_plugins()


class To(Router):
    """Sends each request where its id says: ``2:name`` to replica 2; anything else it answers as it is told."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}
        self.asked: list[str] = []

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int | None:
        self.asked.append(request.request_id)
        if request.request_id in self.answers:
            answer = self.answers[request.request_id]
            found: int | None = answer(fleet, request) if callable(answer) else answer
            return found
        head, colon, _ = request.request_id.partition(":")
        return int(head) if colon else 0


def make_fleet(
    replicas: int = 2, router: Router | None = None, *, plugins: Sequence[object] = (), blocks: int = 64, **config: Any
) -> Fleet:
    """Replicas of 64 blocks of four tokens whose steps take 1 ms."""
    values: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "policy": "vllm_v1", **config}
    return Fleet(
        EngineConfig(replicas=replicas, **values),
        backend=lambda: FakeBackend(num_blocks=blocks, block_size=4),
        router=router,
        plugins=plugins,
        installed=INSTALLED,
    )


def drive(fleet: Fleet, requests: Sequence[Request], *, leap: bool = True) -> list[int]:
    """Route each at its arrival, and run to the end; where each went."""
    places = []
    for request in requests:
        run_to(fleet, request.arrival_ns, leap=leap)
        places.append(fleet.add_request(request))
    while fleet.advance():
        pass
    for replica in fleet.replicas:
        check_empty(replica.scheduler)
    return places


def run_to(fleet: Fleet, arrival_ns: int, *, leap: bool = True) -> None:
    """All events before an arrival at that time."""
    while (event := fleet.next_event()) is not None and event < (arrival_ns, ARRIVAL):
        fleet.advance(until_ns=arrival_ns if leap else event[0])
