"""Records of a fleet: those of its replicas, put together."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from batchwright.lab.recorder import Recorder
from batchwright.lab.records import OfferedRecord, RequestRecord
from batchwright.lab.step_records import FIELDS, StepRecords

if TYPE_CHECKING:
    from batchwright.fleet.fleet import Fleet
    from batchwright.lab.materialize import Offer
    from batchwright.request import Request


class FleetRecorder:
    """A recorder for each replica, and one for requests that were routed to none.

    Attributes:
        offered, requests: in the order of the rows; once finished.
        steps, batches: of all replicas, in the order of their ends, of equals by replica; once finished.
        events: the router's faults, then what each replica reported; once finished.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._replicas = [_ReplicaRecorder(replica.index) for replica in fleet.replicas]
        self._unrouted = _ReplicaRecorder(None if len(self._replicas) > 1 else 0)
        self.offered: list[OfferedRecord] = []
        self.requests: list[RequestRecord] = []
        self.steps = StepRecords()
        self.batches: array[int] = array("Q")
        self.events: list[dict[str, Any]] = []
        self._unrouted.start(fleet.replicas[0].engine.clock)
        for recorder, replica in zip(self._replicas, fleet.replicas, strict=True):
            recorder.start(replica.engine.clock)
            replica.scheduler.register(recorder, "recorder")

    @property
    def num_ended(self) -> int:
        """Requests that were refused or have ended."""
        return self._unrouted.num_ended + sum(recorder.num_ended for recorder in self._replicas)

    def offer(self, offer: Offer, place: int | None) -> None:
        """This request is offered next, and was routed to this replica; call it before the replica takes it.

        Args:
            offer: not added yet.
            place: index of the replica; None: it was routed to none.
        """
        recorder = self._replicas[place] if place is not None else self._unrouted
        recorder.offer(offer)

    def refuse(self, request: Request, error: Exception) -> None:
        """Its replica did not take this request, or the fleet did not."""
        for recorder in (*self._replicas, self._unrouted):
            if recorder.knows(request):
                recorder.refuse(request, error)

    def finish(self, *, interrupted: bool = False) -> None:
        """The run is over: put the records together.

        Args:
            interrupted: an exception may have cut an observer call short; what it left half done is dropped.
        """
        found: dict[int, tuple[OfferedRecord, RequestRecord]] = {}
        for recorder in (*self._replicas, self._unrouted):
            requests = recorder.finish(interrupted=interrupted)
            found.update(zip(recorder.rows, zip(recorder.offered, requests, strict=True), strict=True))
        for _, (offered, request) in sorted(found.items()):
            self.offered.append(offered)
            self.requests.append(request)
        self._put_steps_together()
        self.events += self._fleet.events
        for recorder, replica in zip(self._replicas, self._fleet.replicas, strict=True):
            where = {"replica": replica.index} if len(self._replicas) > 1 else {}
            self.events += [{**event, **where} for event in (*recorder.events, *replica.scheduler.take_events())]

    def _put_steps_together(self) -> None:
        """By end, and of equals by replica: what was told first in virtual time comes first."""
        end, replica = FIELDS.index("end_ns"), FIELDS.index("replica")
        parts = [np.stack([recorder.steps.column(name) for name in FIELDS], axis=1) for recorder in self._replicas]
        for index, part in enumerate(parts):
            part[:, replica] = index
        numbers = np.concatenate(parts)
        order = np.lexsort((numbers[:, replica], numbers[:, end]))  # stable: a replica's own steps keep their order
        self.steps.extend_numbers(array("q", numbers[order].tobytes()))
        batches = np.concatenate([np.array(recorder.batches, dtype=np.uint64) for recorder in self._replicas])
        self.batches = array("Q", batches[order].tobytes())


class _ReplicaRecorder(Recorder):
    """Of one replica.

    Attributes:
        rows: of its requests, their places in the workload.
    """

    def __init__(self, replica: int | None) -> None:
        super().__init__()
        self._replica = replica
        self.rows: list[int] = []

    def offer(self, offer: Offer) -> None:
        """See ``Recorder``."""
        super().offer(offer)
        self._records[offer.request.request_id].replica = self._replica
        self.rows.append(offer.place)

    def knows(self, request: Request) -> bool:
        """Whether it was offered here, and has not ended."""
        return request in self._rows
