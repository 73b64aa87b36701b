"""Sending the requests of one run, and noting what comes back and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from batchwright.lab.endpoint.answer import Answer
from batchwright.lab.endpoint.asks import Ask, Asks, begin_record
from batchwright.lab.endpoint.client import Client, LostError
from batchwright.lab.endpoint.lag import LagMeter
from batchwright.lab.endpoint.outcome import cut_off, judge
from batchwright.lab.endpoint.seen import Seen
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import Offer
from batchwright.lab.records import OfferedRecord, RequestRecord

SERVER_LOST = "server_lost"
"""Why a run stopped: its server answered no more."""

_REFUSED = (400, 413, 422, 429)
"""The server did not take it, and is well."""
_ALIVE_S = 5.0
_TRIES = 3
_BETWEEN_TRIES_S = 0.5


@dataclass(slots=True)
class _InFlight:
    """A request that was sent.

    Attributes:
        given_up: its client has ended it.
    """

    record: RequestRecord
    task: asyncio.Task[None] | None = None
    given_up: bool = False


class Drive:
    """The loop of one run.

    Args:
        client: connected.
        asks: what to send.
        until_s: seconds after which the run ends; None: when all have ended.
        tell: called often with how many requests have ended.

    Attributes:
        offered, records: of the requests, in the order in which they were sent.
        num_ended: requests that have ended.
        seen: what the streams were like.
        duration_ns: of the run.
        lag_s: the lag of this process that one in a hundred looks exceeds.
    """

    def __init__(self, client: Client, asks: Asks, until_s: float | None, tell: Callable[[int], None]) -> None:
        self._client = client
        self._asks = asks
        self._arrivals = asks.arrivals
        self._until_s = until_s
        self._tell = tell
        self._start_ns = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._changed = asyncio.Event()
        self._stopped: str | None = None
        self._why_lost = ""
        self._checking: asyncio.Task[None] | None = None
        self.num_ended = 0
        self.offered: list[OfferedRecord] = []
        self.records: list[RequestRecord] = []
        self.seen = Seen()
        self.duration_ns = 0
        self.lag_s = 0.0

    @property
    def waits(self) -> bool:
        """Whether some requests were sent when others had ended."""
        return self._arrivals.waits

    async def run(self, interrupts: Interrupts) -> str | None:
        """To the end, or why it stopped before."""
        meter = LagMeter(lambda: self._look(interrupts))
        self._start_ns = time.perf_counter_ns()
        self._arrivals.start(0)
        ticking = asyncio.create_task(meter.run())
        try:
            await self._loop()
        finally:
            ticking.cancel()
            self.duration_ns = self._now()
            await self._end_all()
            self.lag_s = meter.p99_s()
        return self._stopped

    def offer_rest(self) -> None:
        """Put what was never sent into the records: it was asked for."""
        for offer in self._arrivals.rest(self.duration_ns):
            self._never_sent(offer)

    async def _loop(self) -> None:
        arrivals = self._arrivals
        while self._stopped is None:
            now = self._now()
            while arrivals.next_ns is not None and arrivals.next_ns <= now:
                self._send(arrivals.take())
            if arrivals.next_ns is None and not self._in_flight:
                if self._checking is not None:
                    await self._checking
                return
            self._changed.clear()
            wait_s = None if arrivals.next_ns is None else max(0.0, (arrivals.next_ns - self._now()) / 1e9)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    def _look(self, interrupts: Interrupts) -> None:
        """Called often: whether the run is to end."""
        self._tell(self.num_ended)
        if interrupts.asked:
            self._stop("interrupted")
        elif self._until_s is not None and self._now() >= self._until_s * 1e9:
            self._stop("max_seconds")

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        self._changed.set()

    def _now(self) -> int:
        return time.perf_counter_ns() - self._start_ns

    def _send(self, offer: Offer) -> None:
        ask = self._asks.write(offer)
        record = begin_record(offer, ask.offered.arrival_ns)
        self.offered.append(ask.offered)
        self.records.append(record)
        flight = _InFlight(record)
        self._in_flight[offer.place] = flight
        flight.task = asyncio.create_task(self._one(ask, flight))

    def _never_sent(self, offer: Offer) -> None:
        ask = self._asks.write(offer)
        record = begin_record(offer, ask.offered.arrival_ns)
        if self._stopped == SERVER_LOST:
            record.status, record.finish_reason, record.error = "failed", "error", f"never sent: {self._why_lost}"
        self.offered.append(ask.offered)
        self.records.append(record)

    async def _one(self, ask: Ask, flight: _InFlight) -> None:
        """Send one request, and wait for its end."""
        answer, record, row = Answer(ask.max_tokens), flight.record, ask.offer.row
        timer = None
        if row.abort_after_s is not None:
            wait_s = record.arrival_ns / 1e9 + row.abort_after_s - self._now() / 1e9
            timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._give_up, flight)
        try:
            await self._exchange(ask, answer, flight)
        except asyncio.CancelledError:
            if not flight.given_up and self._stopped is None:
                raise
        finally:
            if timer is not None:
                timer.cancel()
            self._settle(ask, answer, flight)

    async def _exchange(self, ask: Ask, answer: Answer, flight: _InFlight) -> None:
        record, enough = flight.record, ask.offer.row.abort_after_tokens
        self.seen.lateness_ns.append(self._now() - record.arrival_ns)
        try:
            async with self._client.post(ask.path, ask.body, ask.headers) as stream:
                if stream.status != 200:
                    reply = await stream.read()
                    record.status = "refused" if stream.status in _REFUSED else "failed"
                    record.error = reply.words()
                    return
                if stream.content_type != "text/event-stream":
                    record.status, record.error = "failed", f"the server did not stream: it sent {stream.content_type}"
                    return
                async for data in stream.chunks():
                    answer.feed(data, self._now())
                    if enough is not None and answer.num_tokens >= enough and answer.finish_reason is None:
                        flight.given_up = True
                        return
        except LostError as error:
            answer.error = answer.error or cut_off(answer, str(error))
            self._check_server(str(error))

    def _give_up(self, flight: _InFlight) -> None:
        flight.given_up = True
        if flight.task is not None:
            flight.task.cancel()

    def _settle(self, ask: Ask, answer: Answer, flight: _InFlight) -> None:
        """What became of it."""
        record, offer = flight.record, ask.offer
        answer.finish()
        now = self._now()
        record.token_times_ns = answer.times_ns
        record.num_output_tokens = len(answer.times_ns)
        self.seen.take(answer, record.num_prompt_tokens)
        if not record.num_prompt_tokens:
            record.num_prompt_tokens = answer.num_prompt_tokens or 0
        record.num_cached_tokens = answer.num_cached_tokens or 0
        if record.status == "unfinished":
            ended = self._stopped is not None
            judge(record, ask, answer, given_up=flight.given_up, ended=ended, why_lost=self._why_lost)
        if record.status == "finished":
            record.finish_ns = answer.times_ns[-1]
        elif record.status in ("failed", "aborted"):
            record.finish_ns = now
            record.finish_reason = "abort" if record.status == "aborted" else "error"
        del self._in_flight[offer.place]
        if record.status != "unfinished":
            self.num_ended += 1
        if self._stopped is None:
            self._arrivals.ended(offer.place, now)
        self._changed.set()

    def _check_server(self, why: str) -> None:
        """A connection broke: is anybody there?"""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._find_out(why))

    async def _find_out(self, why: str) -> None:
        for _ in range(_TRIES):
            with suppress(LostError):
                await self._client.get(f"{self._client.url}/models", _ALIVE_S)
                return
            await asyncio.sleep(_BETWEEN_TRIES_S)
        if self._stopped is None:
            self._why_lost = (
                f"the server at {self._client.url} stopped answering {self._now() / 1e9:.1f} s into the run ({why})"
            )
            self._stop(SERVER_LOST)

    async def _end_all(self) -> None:
        """Close what is still open."""
        tasks = [flight.task for flight in self._in_flight.values() if flight.task is not None]
        if self._checking is not None:
            tasks.append(self._checking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
