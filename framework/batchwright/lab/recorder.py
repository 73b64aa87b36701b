"""An observer that keeps the records of a run, at a cost of about 0.1 µs a token."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64_intdigest

from batchwright.awaited import is_awaited
from batchwright.hookspecs import hookimpl
from batchwright.lab.records import OfferedRecord, RequestRecord, Status
from batchwright.lab.step_records import FIELDS, StepRecords

if TYPE_CHECKING:
    from batchwright.backend import Clock, StepResult
    from batchwright.lab.materialize import Offer
    from batchwright.lab.stream import RecordStream
    from batchwright.leap import Leap
    from batchwright.request import Request
    from batchwright.step import Step

_STEPS_OF_A_LINE = 4096
_INDEX, _START, _END, _FREE = (FIELDS.index(name) for name in ("index", "start_ns", "end_ns", "free_blocks"))


class Recorder:
    """Collects request and step records of one engine. Register it as a plugin, then say what is offered.

    Attributes:
        offered: what was offered, in order.
        steps: records of the steps so far.
        batches: fingerprints of their batches.
        events: what detectors reported.
        num_ended: requests that were refused or have ended.
    """

    def __init__(self, stream: RecordStream | None = None) -> None:
        """Makes one that keeps all records; with a stream, those of unfinished requests, and it gets the others."""
        self._stream = stream
        self.offered: list[OfferedRecord] = []
        self.steps = StepRecords()
        self.batches: array[int] = array("Q")
        self.events: list[dict[str, Any]] = []
        self.num_ended = 0
        self._clock: Clock | None = None
        self._start_ns = 0
        self._records: dict[str, RequestRecord] = {}  # in order of the offers
        # Of the live ones only, so that prompts are given back as requests end.
        self._rows: dict[Request, int] = {}  # places in the workload: fingerprints of batches are made of these
        self._appends: dict[Request, Callable[[int], None]] = {}
        self._ended: list[Request] = []
        self._events: list[dict[str, Any]] = []  # of the last step
        self._open: Callable[[], None] | None = None  # completes the last step, whose end was not known
        self._lost: str | None = None  # an observer call was lost, and how that shows
        self._last_end = 0
        self._last_batch: Sequence[Request] = ()  # the last in which each had one token
        self._last_fingerprint = xxh3_64_intdigest(b"")
        # Who got a token in each of the last steps, and the ends of these: most often the same go on for long.
        self._sampled: Sequence[Request] = ()
        self._takers: Iterator[Request] = iter(())
        self._times: array[int] = array("q")

    def start(self, clock: Clock) -> int:
        """The run starts now: times in records count from here. Gives the moment in the clock's nanoseconds."""
        self._clock = clock
        self._start_ns = clock.now_ns()
        return self._start_ns

    def offer(self, offer: Offer) -> None:
        """This request is offered next; call it before it is added to the engine."""
        request = offer.request
        arrival_ns = request.arrival_ns - self._start_ns
        self._rows[request] = offer.place
        offered = OfferedRecord(
            request.request_id,
            arrival_ns,
            offer.prompt_hash,
            offer.length,
            request.max_tokens,
        )
        if self._stream is None:
            self.offered.append(offered)
        else:
            self._stream.offered(offered)
        record = RequestRecord(
            request_id=request.request_id,
            client_id=request.client_id,
            priority=request.priority,
            arrival_ns=arrival_ns,
            first_scheduled_ns=None,
            token_times_ns=array("q"),
            finish_ns=None,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=0,
            num_cached_tokens=0,
            num_recomputed_tokens=0,
            num_preemptions=0,
            slo=request.slo,
            status="unfinished",
            weight=request.weight,
            slo_class=_slo_class(request),
        )
        self._records[request.request_id] = record
        self._appends[request] = record.token_times_ns.append

    def refuse(self, request: Request, error: Exception) -> None:
        """The engine did not take this request."""
        record = self._records[request.request_id]
        record.status, record.error = "refused", str(error)
        self._hand_over(request, record)
        self._forget(request)
        self.num_ended += 1

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        """Keep the prefix hit of the first admission (later ones hit what the request itself left) and later times."""
        record = self._records.get(request.request_id)
        if record is None:
            return
        if not request.num_preemptions:
            record.num_cached_tokens = request.num_cached
        elif record.preempted_ns:
            record.resumed_ns.append(step.now - self._start_ns)

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        """Keep when."""
        record = self._records.get(victim.request_id)
        if record is None:
            return
        if not record.preempted_ns:
            record.preempted_ns, record.resumed_ns = array("q"), array("q")
        record.preempted_ns.append(step.now - self._start_ns)

    @hookimpl
    def step_finished(self, step: Step, result: StepResult) -> None:
        """Keep the step, and a time for each token; with overlap they are not there yet and come with the next."""
        if self._open is not None:
            self._close_step()
        requests = step.batch
        num_prefill, num_decodes = step.num_prefill_tokens, step.num_decodes
        if num_prefill + num_decodes != len(requests):
            batch = array("i", map(self._rows.__getitem__, requests))
            batch.extend([request.num_scheduled for request in requests])
            self.batches.append(xxh3_64_intdigest(batch))
        elif requests == self._last_batch:  # each has one token, as most often
            self.batches.append(self._last_fingerprint)
        else:
            self.batches.append(self._fingerprint(requests))
        counts = (
            num_prefill,
            num_decodes,
            len(step.preempted),
            len(step.waiting),
            len(step.running),
            step.free_blocks,
            0,
            len(requests),
        )
        if self._events or self.events:
            self._take_events()
        self._events = step.events  # more may come until the next step
        ended = self._ended
        if ended:
            self._ended = []
        if is_awaited(step):
            self._open = partial(self._complete, step, counts, list(ended))
        else:
            self._complete(step, counts, ended)

    @hookimpl
    def steps_leapt(self, leap: Leap) -> None:
        """Keep all of them."""
        self._close_step()
        num, waiting, since = len(leap.requests), leap.num_waiting, self._start_ns
        self.batches.extend([self._fingerprint(leap.requests)] * len(leap))
        self._take_events()
        self._events = leap.events
        ends = np.array(leap.ends_ns, dtype=np.int64) - since
        start = leap.start_ns - since
        numbers = np.zeros((len(ends), len(FIELDS)), dtype=np.int64)
        numbers[:] = (0, start, 0, 0, num, 0, waiting, num, 0, 0, num)
        numbers[:, _INDEX] = np.arange(leap.first_index, leap.first_index + len(ends))
        numbers[1:, _START] = ends[:-1]
        numbers[:, _END] = ends
        numbers[:, _FREE] = leap.free_blocks
        self.steps.extend_packed(numbers)
        self._last_end = int(ends[-1])
        if leap.requests != self._sampled:
            self._give_times()
            self._sampled, self._takers = leap.requests, iter(leap.requests)
        self._times.frombytes(ends.tobytes())

    def _fingerprint(self, requests: Sequence[Request]) -> int:
        """Of a batch in which each has one token; most often it is the one of the step before."""
        if requests != self._last_batch:
            self._last_batch = requests
            self._last_fingerprint = xxh3_64_intdigest(array("i", map(self._rows.__getitem__, requests)))
        return self._last_fingerprint

    def _complete(self, step: Step, counts: tuple[int, ...], ended: list[Request]) -> None:
        """Its end is known now, or waited for."""
        end = step.end
        if end is None:
            raise RuntimeError("step_finished was called for a step that has no end")
        since = self._start_ns
        end -= since
        if step.sampled != self._sampled:
            self._give_times()
            self._sampled, self._takers = step.sampled, iter(step.sampled)
        self._times.append(end)
        # Scheduled while the step before it was executed, it began when that one ended.
        start, last = step.now - since, self._last_end
        self.steps.extend_numbers((step.index, start if start > last else last, end, *counts))
        self._last_end = end
        if ended:
            self._give_times()
        if self._stream is not None and len(self.steps) >= _STEPS_OF_A_LINE:
            self._stream.steps(self.steps.take(), self.batches)
            del self.batches[:]
        for request in ended:
            if request.is_finished:
                self._end(request)
                self._forget(request)
            else:  # its last token was lost, and it runs again
                record = self._records[request.request_id]
                record.finish_reason = record.finish_ns = None
                self.num_ended -= 1

    def _give_times(self) -> None:
        """Give those who got a token in each of the last steps the times of these steps."""
        times, appends = self._times, self._appends
        if len(times) == 1:
            time = times[0]
            for request in self._takers:  # an interrupt leaves those who have theirs behind
                appends[request](time)
        elif times:
            for request in self._takers:
                self._records[request.request_id].token_times_ns.extend(times)
        self._sampled, self._takers, self._times = (), iter(()), array("q")

    def _close_step(self) -> None:
        if self._open is not None:
            complete, self._open = self._open, None
            complete()

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        """Keep what became of the request."""
        record = self._records.get(request.request_id)
        if record is None:
            return  # the run is over, and the engine aborts what is left as it closes
        record.finish_reason = reason
        if self._clock is not None:
            record.finish_ns = self._clock.now_ns() - self._start_ns
        self._ended.append(request)
        self.num_ended += 1

    def _end(self, request: Request) -> None:
        """What is known of a request that has ended; of its last token with the step that brought it."""
        record = self._records[request.request_id]
        self._settle(request, record)
        record.finish_reason = reason = str(request.finish_reason)
        record.status = _status(reason)
        record.error = request.error
        if record.status == "finished" and request.last_token_ns is not None:
            record.finish_ns = request.last_token_ns - self._start_ns
        self._hand_over(request, record)

    def _hand_over(self, request: Request, record: RequestRecord) -> None:
        """This record is complete."""
        if self._stream is not None:
            self._lost = self._lost or _lost_times(record)
            self._stream.request(self._rows[request], record)
            del self._records[request.request_id]

    def finish(self, *, interrupted: bool = False) -> list[RequestRecord]:
        """The run is over: records of all requests, in the order in which they were offered. Later calls are ignored.

        Args:
            interrupted: an exception may have cut an observer call short; what it left half done is dropped.

        Raises:
            RuntimeError: a record has not one time for each token: an observer call was lost.
        """
        self._close_step()
        self._give_times()
        for request in self._ended:  # since the last step
            self._end(request)
            self._forget(request)
        for request in self._rows:
            record = self._records.get(request.request_id)
            if record is not None:
                self._settle(request, record)
                if interrupted:
                    record.num_output_tokens = len(record.token_times_ns)
                self._hand_over(request, record)
        records, self._records = list(self._records.values()), {}
        self._take_events()
        if interrupted:
            del self.batches[len(self.steps) :]
        for record in records:
            if interrupted:
                record.num_output_tokens = len(record.token_times_ns)
            self._lost = self._lost or _lost_times(record)
        if self._stream is not None:
            self._stream.steps(self.steps.take(), self.batches)
        if self._lost and not interrupted:
            raise RuntimeError(self._lost)
        return records

    def _settle(self, request: Request, record: RequestRecord) -> None:
        record.num_output_tokens = request.num_output_tokens
        record.num_recomputed_tokens = request.num_recomputed
        record.num_preemptions = request.num_preemptions
        if request.first_scheduled_ns is not None:
            record.first_scheduled_ns = request.first_scheduled_ns - self._start_ns

    def _take_events(self) -> None:
        if self._events:
            self.events += self._events
            self._events = []
        if self.events and self._stream is not None:
            self._stream.events(self.events)
            self.events.clear()

    def _forget(self, request: Request) -> None:
        self._rows.pop(request, None)
        self._appends.pop(request, None)


def _lost_times(record: RequestRecord) -> str | None:
    """What is wrong with a complete record; None: it has one time for each token."""
    if len(record.token_times_ns) == record.num_output_tokens:
        return None
    return (
        f"request {record.request_id} has {record.num_output_tokens} output tokens and "
        f"{len(record.token_times_ns)} token times: the recorder missed a step (see the engine's faults)"
    )


def _slo_class(request: Request) -> str | None:
    given = request.extra.get("slo_class")
    return None if given is None else str(given)


def _status(reason: str) -> Status:
    if reason == "abort":
        return "aborted"
    return "failed" if reason == "error" else "finished"
