"""An observer that keeps the records of a run, at a cost of about 0.1 µs a token."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from batchwright.awaited import is_awaited
from batchwright.hookspecs import hookimpl
from batchwright.lab.records import OfferedRecord, RequestRecord, Status
from batchwright.lab.riding import Riding, key_of
from batchwright.lab.step_records import StepRecords
from batchwright.roster import roster_of

if TYPE_CHECKING:
    from batchwright.backend import Clock, StepResult
    from batchwright.lab.materialize import Offer
    from batchwright.lab.stream import RecordStream
    from batchwright.leap import Leap
    from batchwright.request import Request
    from batchwright.step import Step

_STEPS_OF_A_LINE = 4096
Counts = tuple[int, int, int, int, int, int, int]
"""Of a step: prompt tokens, decodes, evicted, waiting, residents, free blocks, rows."""


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
        self._rows: dict[Request, int] = {}  # places in the workload
        self._keys: dict[Request, int] = {}  # of these, of which fingerprints of batches are made
        self._riding = Riding(self._keys, self._give)
        self._ended: list[Request] = []
        self._events: list[dict[str, Any]] = []  # of the last step
        self._open: Callable[[], None] | None = None  # completes the last step, whose end was not known
        self._lost: str | None = None  # an observer call was lost, and how that shows
        self._last_end = 0
        self._num_steps = 0  # that were not streamed

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
        self._keys[request] = key_of(offer.place, 1)
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
        self._records[request.request_id] = offer.begin_record(arrival_ns)

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
        if self._riding.roster is None:
            self._riding.watch(roster_of(step))
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
        riding, state, batch, sampled = self._riding, step._state, step.batch, step.sampled
        num_advances, num_advanced, num_rows = riding.num_advances(), step._num_advanced, len(batch)
        if num_advances and not step._aborted and step._num_riding == num_rows:
            self.batches.append(riding.sum_of_last())  # as most often
        else:
            self.batches.append(self._fingerprint(step, num_advances))
        others = sampled[num_advanced:] if num_advanced != len(sampled) else ()
        counts = (
            step.num_prefill_tokens,
            step.num_decodes,
            len(step.preempted),
            len(state.queue),
            len(state.residents),
            state.blocks.num_free,
            num_rows,
        )
        if self._events or self.events:
            self._take_events()
        self._events = step.events  # more may come until the next step
        ended = self._ended
        if ended:
            self._ended = []
        if is_awaited(step):
            self._open = partial(self._complete_awaited, step, counts, list(ended), num_advances, others)
        else:
            self._complete(step, counts, ended, num_advances, others)

    @hookimpl
    def steps_leapt(self, leap: Leap) -> None:
        """Keep all of them."""
        self._close_step()
        since, num, riding = self._start_ns, len(leap.requests), self._riding
        ends = [end - since for end in leap.ends_ns] if since else leap.ends_ns
        num_steps, first = len(ends), leap.first_index
        riding.skip(riding.num_advances() - num_steps)
        self.batches += array("Q", (riding.sum_of_last(),)) * num_steps
        if self._events or self.events:
            self._take_events()
        self._events = leap.events
        start = leap.start_ns - since
        left = num - len(leap.finished)
        self.steps.extend_stretch((first, start, ends, 0, num, 0, leap.num_waiting, num, left, leap.free_blocks, num))
        self._num_steps += num_steps
        self._last_end = ends[-1]
        riding.add(ends)
        ended, self._ended = self._ended, []
        self._after_step(ended)

    def _fingerprint(self, step: Step, num_advances: int) -> int:
        """Of who runs in a step, and how many tokens of each; not of their order."""
        rows, batch = self._rows, step.batch
        if step._num_riding and num_advances and not step._aborted:
            fingerprint = self._riding.sum_of_last()
            batch = batch[step._num_riding :]
        else:
            fingerprint = 0
        for request in batch:
            num = request.num_scheduled
            fingerprint += self._keys[request] if num == 1 else key_of(rows[request], num)
        return fingerprint & (2**64 - 1)

    def _complete(
        self,
        step: Step,
        counts: Counts,
        ended: list[Request],
        num_advances: int,
        others: Sequence[Request],
    ) -> None:
        """Its end is known now, or waited for."""
        end = step.end
        if end is None:
            raise RuntimeError("step_finished was called for a step that has no end")
        since = self._start_ns
        end -= since
        # Scheduled while the step before it was executed, it began when that one ended.
        start, last = step.now - since, self._last_end
        self.steps.extend_one(step.index, start if start > last else last, end, *counts)
        self._num_steps += 1
        self._last_end = end
        if num_advances == 1 and step.sampled:
            self._riding.add_one(end)
        else:
            came = bool(num_advances and step.sampled)
            self._riding.skip(num_advances - came)
            self._riding.add((end,) if came else ())
        for request in others:
            self._records[request.request_id].token_times_ns.append(end)
        if ended or self._stream is not None:
            self._after_step(ended)

    def _complete_awaited(
        self,
        step: Step,
        counts: Counts,
        ended: list[Request],
        num_advances: int,
        others: Sequence[Request],
    ) -> None:
        """The same of a step whose results came later: some of its tokens may never have come."""
        self._complete(step, counts, ended, num_advances, [r for r in others if r in step.sampled])

    def _after_step(self, ended: list[Request]) -> None:
        """The times of the last steps are given."""
        if self._stream is not None and self._num_steps >= _STEPS_OF_A_LINE:
            self._stream.steps(self.steps.take(), self.batches)
            del self.batches[:]
            self._num_steps = 0
        for request in ended:
            if request.is_finished:
                self._end(request)
                self._forget(request)
            else:  # its last token was lost, and it runs again
                record = self._records[request.request_id]
                record.finish_reason = record.finish_ns = None
                self.num_ended -= 1

    def _give(self, request: Request, times: Sequence[int]) -> None:
        record = self._records.get(request.request_id)
        if record is not None:
            record.token_times_ns.extend(times)

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
        self._riding.give_all()
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
        record.num_output_tokens = num = request.num_output_tokens
        if len(record.token_times_ns) > num and request.is_finished:  # its last token was lost, with its step's time
            del record.token_times_ns[num:]
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
        self._keys.pop(request, None)


def _lost_times(record: RequestRecord) -> str | None:
    """What is wrong with a complete record; None: it has one time for each token."""
    if len(record.token_times_ns) == record.num_output_tokens:
        return None
    return (
        f"request {record.request_id} has {record.num_output_tokens} output tokens and "
        f"{len(record.token_times_ns)} token times: the recorder missed a step (see the engine's faults)"
    )


def _status(reason: str) -> Status:
    if reason == "abort":
        return "aborted"
    return "failed" if reason == "error" else "finished"
