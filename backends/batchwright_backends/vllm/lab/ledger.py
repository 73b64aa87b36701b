"""The records of one run, as those of every other backend are."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from batchwright.lab.endpoint.asks import begin_record
from batchwright.lab.materialize import Offer
from batchwright.lab.records import OfferedRecord, RequestRecord
from batchwright.lab.riding import key_of
from batchwright.lab.step_records import StepRecords
from batchwright_backends.vllm.ledger import Entry, Ledger, Numbers

_WORD = 2**64 - 1


class RunLedger(Ledger):
    """Keeps the records of all requests and steps of one run.

    Attributes:
        offered, records: of the requests, in the order in which they were offered.
        steps, batches: of the steps, and fingerprints of their batches.
        num_ended: requests that have ended.
        over: places of the rows that ended, and when, in nanoseconds of the clock, until somebody takes them.
        coming: what is added next; vLLM gives it an id of its own.
    """

    def __init__(self, start_ns: int, num_blocks: int) -> None:
        super().__init__(start_ns, num_blocks)
        self.offered: list[OfferedRecord] = []
        self.records: list[RequestRecord] = []
        self.steps = StepRecords()
        self.batches: array[int] = array("Q")
        self.num_ended = 0
        self.over: list[tuple[int, int]] = []
        self.coming: Offer | None = None
        self._offers: dict[str, tuple[Offer, int]] = {}
        self._of: dict[int, str] = {}

    def offer(self, offer: Offer) -> RequestRecord:
        """This request is offered next."""
        request = offer.request
        arrival_ns = request.arrival_ns - self.start_ns
        self.coming = offer
        self.offered.append(
            OfferedRecord(request.request_id, arrival_ns, offer.prompt_hash, offer.length, request.max_tokens)
        )
        self.records.append(begin_record(offer, arrival_ns))
        return self.records[-1]

    def refuse(self, offer: Offer, why: str, now_ns: int) -> None:
        """vLLM did not take what was offered last."""
        record = self.records[-1]
        record.status, record.error = "refused", why
        self.num_ended += 1
        self.over.append((offer.place, now_ns))

    def name_of(self, place: int) -> str | None:
        """vLLM's id of the request of a row; None: it is not here."""
        return self._of.get(place)

    def num_tokens(self, place: int) -> int:
        """Output tokens so far of a request that is here."""
        entry = self.entries[self._of[place]]
        self.settle(entry)
        return len(entry.record.token_times_ns)

    # As of Ledger -----------------------------------------------------------------------------------------------

    def begin(self, request: Any, now_ns: int) -> RequestRecord:
        """See :class:`Ledger`."""
        offer, self.coming = self.coming, None
        if offer is None:
            raise RuntimeError(f"vLLM was given a request that nobody offered: {request.request_id!r}")
        # vLLM ends it there; what it asked for stands in its sampling parameters, and policies go by that.
        request.max_tokens = min(request.max_tokens, offer.length)
        self._offers[request.request_id] = offer, key_of(offer.place, 1)
        self._of[offer.place] = request.request_id
        return self.records[-1]

    def not_taken(self, request: Any) -> None:
        """See :class:`Ledger`."""
        super().not_taken(request)
        del self._of[self._offers.pop(request.request_id)[0].place]

    def ended(self, entry: Entry) -> None:
        """See :class:`Ledger`."""
        offer, _ = self._offers.pop(entry.name)
        del self._of[offer.place]
        record = entry.record
        self.num_ended += 1
        self.over.append((offer.place, (record.finish_ns or 0) + self.start_ns))
        if record.status in ("failed", "refused"):
            record.error = (
                getattr(entry.request, "batchwright_error", None) or "vLLM ended it with an error: see its log"
            )
            if record.status == "refused":
                record.finish_ns = record.finish_reason = None
        elif record.status == "finished" and record.num_output_tokens == offer.num_output_tokens:
            record.finish_reason = "trace" if record.num_output_tokens < offer.request.max_tokens else "length"

    def fingerprint(self, counts: Mapping[str, int]) -> int:
        """Of who runs in a step, and how many tokens of each, as the lab's recorder makes it."""
        found, offers = 0, self._offers
        for name, num in counts.items():
            offer, key = offers[name]
            found += key if num == 1 else key_of(offer.place, num)
        return found & _WORD

    def step(self, numbers: Numbers, fingerprint: int) -> None:
        """See :class:`Ledger`."""
        self.steps.extend_numbers(numbers)
        self.batches.append(fingerprint)

    def finish(self) -> None:
        """Who has not ended is unfinished, with what it has so far."""
        self.settle()
        for entry in self.entries.values():
            entry.record.num_output_tokens = len(entry.record.token_times_ns)
        self.is_closed = True
