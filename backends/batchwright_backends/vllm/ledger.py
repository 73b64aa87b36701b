"""Records of requests and steps, made of what a scheduler of vLLM's is asked and what it answers.

It stands outside the scheduler, so vLLM's own, a guest in it and Batchwright's are seen with the same eyes. Nothing of
vLLM is imported here.

While the same decodes get a token each in step after step, only the end of a step is put down: their records are not
touched, and get all those times when somebody wants them. Whether they are the same is found out without a loop.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from batchwright.lab.records import RequestRecord, Status

Numbers = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""Of a step, in the order of ``batchwright.lab.step_records.FIELDS``."""


_NAME, _TOKENS, _REASON = attrgetter("request_id"), attrgetter("new_token_ids"), attrgetter("finish_reason")
_MOST_ENDS = 4096
"""Steps after which riders get their times, so that they take no memory twice."""


class Entry:
    """One request that has not ended.

    Attributes:
        name: its id.
        request: vLLM's.
        record: what is known of it.
        add: keeps the time of one more token.
        left: tokens to compute before it samples, since its admission.
        computed: tokens computed, as long as it is prefilling.
        high_water: the most that was computed of it before an eviction.
        since: it rides, and of the ends of steps that the ledger keeps those from here on are its; -1: it does not.
    """

    __slots__ = ("add", "computed", "high_water", "left", "name", "record", "request", "since")

    def __init__(self, request: Any, record: RequestRecord) -> None:
        self.name: str = request.request_id
        self.request = request
        self.record = record
        self.add = record.token_times_ns.append
        self.left = self.computed = self.high_water = 0
        self.since = -1


class Ledger:
    """What happens in one scheduler; a subclass says what becomes of it in ``begin``, ``ended`` and ``step``.

    Of those that ride (above) the records lack the last times of tokens until ``settle``.

    All times it is given are of one clock; those in records count from ``start_ns``.

    Attributes:
        start_ns: when it began.
        num_blocks: KV blocks that requests may have.
        forgives: a fault of it is its own affair: the scheduler goes on without it.
        is_closed: it wants to know nothing more.
    """

    forgives = False

    def __init__(self, start_ns: int, num_blocks: int) -> None:
        self.start_ns = start_ns
        self.num_blocks = num_blocks
        self.is_closed = False
        self.entries: dict[str, Entry] = {}
        self._prefilling: dict[str, Entry] = {}
        self._under_way: deque[tuple[Any, int, int, int, int, int, int]] = deque()
        self._riding: list[str] = []  # in the order of their outputs
        self._ends: array[int] = array("q")  # of steps in which all riders got a token
        self._last_end = 0
        self._num_steps = 0

    # For subclasses -------------------------------------------------------------------------------------------

    def begin(self, request: Any, now_ns: int) -> RequestRecord:
        """The record of a request that arrives."""
        raise NotImplementedError

    def ended(self, entry: Entry) -> None:
        """A request ended; its record is whole."""
        raise NotImplementedError

    def step(self, numbers: Numbers, fingerprint: int) -> None:
        """A step ended."""
        raise NotImplementedError

    def fingerprint(self, counts: Mapping[str, int]) -> int:
        """Of a batch, request id to tokens; for ``step``."""
        return 0

    def failed(self, error: Exception) -> None:
        """It has failed itself, and forgives."""

    def finish(self) -> None:
        """The scheduler shuts down."""

    # What is told to it ---------------------------------------------------------------------------------------

    def arriving(self, request: Any, now_ns: int) -> None:
        """A request is about to be added; a second part of one that is there already changes nothing."""
        if request.request_id not in self.entries:
            self.entries[request.request_id] = Entry(request, self.begin(request, now_ns))

    def arrived(self, request: Any) -> None:
        """It was added."""

    def not_taken(self, request: Any) -> None:
        """It was not: the scheduler raised."""
        self.entries.pop(request.request_id, None)

    def scheduled(self, told: Any, start_ns: int) -> None:
        """A step was scheduled; ``told`` is vLLM's ``SchedulerOutput``."""
        start = start_ns - self.start_ns
        evicted = told.preempted_req_ids or ()
        for name in evicted:
            self._evict(name, start)
        for new in told.scheduled_new_reqs:
            self._admit(new.req_id, new.num_computed_tokens, start)
        cached = told.scheduled_cached_reqs
        if cached.resumed_req_ids:
            done = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for name in cached.resumed_req_ids:
                self._admit(name, done[name], start)
        counts = told.num_scheduled_tokens
        num_tokens = num_rows = 0
        for name in [name for name in self._prefilling if name in counts] if self._prefilling else ():
            num = counts[name]
            num_tokens += num
            num_rows += 1
            self._prefill(name, num)
        num_decodes, print_ = len(counts) - num_rows, self.fingerprint(counts)
        self._under_way.append((told, start, num_tokens, num_decodes, len(evicted), len(counts), print_))

    def updated(self, told: Any, outputs: Iterable[Any], end_ns: int, scheduler: Any) -> None:
        """A step was executed, and its results taken.

        Args:
            told: what was scheduled.
            outputs: vLLM's ``EngineCoreOutputs``, one for each client.
            end_ns: when the results were there.
            scheduler: gives counts of who is left, and the use of its blocks.
        """
        end = end_ns - self.start_ns
        groups = [some.outputs for some in outputs]
        self._take(told, groups[0] if len(groups) == 1 else [one for some in groups for one in some], end)
        while self._under_way:
            which, start, num_prefill, num_decodes, num_evicted, num_rows, print_ = self._under_way.popleft()
            if which is told:
                break
        else:
            return
        if num_rows or num_evicted:
            running, waiting = scheduler.get_request_counts()
            free = round((1 - scheduler.get_kv_cache_usage()) * self.num_blocks)
            # Scheduled while the step before it was executed, it began when that one ended.
            start = max(start, self._last_end)
            left = (waiting, running, free, 0, num_rows)
            self.step((self._num_steps, start, end, num_prefill, num_decodes, num_evicted, *left), print_)
            self._num_steps += 1
            self._last_end = end

    def stopped(self, names: Iterable[str] | None, reason: str, now_ns: int) -> None:
        """Requests were ended from outside; None: all."""
        for name in list(self.entries) if names is None else names:
            entry = self.entries.get(name)
            if entry is not None:
                self._end(entry, reason, now_ns - self.start_ns)

    def settle(self, entry: Entry | None = None) -> None:
        """Give an entry, or all, the times of the tokens that they got while they rode; they ride on."""
        if entry is not None:
            if entry.since >= 0:
                entry.record.token_times_ns.extend(self._ends[entry.since :])
                entry.since = len(self._ends)
            return
        for name in self._riding:
            rider = self.entries.get(name)
            if rider is not None:
                self.settle(rider)
                rider.since = 0
        self._ends = array("q")

    # What follows from it -------------------------------------------------------------------------------------

    def _take(self, told: Any, outputs: Sequence[Any], end: int) -> None:
        """Tokens of a step."""
        num, num_riding = len(outputs), len(self._riding)
        reasons = list(map(_REASON, outputs))
        has_ends = reasons.count(None) != num
        # Whoever goes on is a row of the batch, with a token unless some were guessed: without a look at each of them.
        names = list(told.num_scheduled_tokens)
        if has_ends or len(names) != num:
            names = list(map(_NAME, outputs))
        is_plain = not has_ends and not getattr(told, "scheduled_spec_decode_tokens", True)
        each_one = is_plain or list(map(len, map(_TOKENS, outputs))).count(1) == num  # token
        if not each_one or (names if num == num_riding else names[:num_riding]) != self._riding:
            self._take_each(outputs, end)
            return
        self._ends.append(end)
        for name in names[num_riding:]:
            entry = self.entries.get(name)
            if entry is not None:
                entry.add(end)
                entry.since = len(self._ends)
        self._riding = names
        if has_ends:
            for name, reason in zip(names, reasons, strict=True):
                if reason is not None and (entry := self.entries.get(name)) is not None:
                    self.settle(entry)
                    entry.since = -1
                    self._end(entry, str(reason), end)
            self._riding = [name for name, reason in zip(names, reasons, strict=True) if reason is None]
        if len(self._ends) >= _MOST_ENDS:
            self.settle()

    def _take_each(self, outputs: Iterable[Any], end: int) -> None:
        """Where others got tokens than before, or not one each."""
        self.settle()
        for name in self._riding:
            if (entry := self.entries.get(name)) is not None:
                entry.since = -1
        riding = []
        for one in outputs:
            entry = self.entries.get(one.request_id)
            if entry is None:
                continue
            for _ in one.new_token_ids:
                entry.add(end)
            if one.finish_reason is not None:
                self._end(entry, str(one.finish_reason), end)
            elif entry.since < 0:  # named twice it rides once
                entry.since = 0
                riding.append(entry.name)
        self._riding = riding

    def _alight(self, entry: Entry) -> None:
        """It rides no longer."""
        if entry.since >= 0:
            self.settle(entry)
            entry.since = -1
            self._riding = [name for name in self._riding if name != entry.name]

    def _admit(self, name: str, num_computed: int, start: int) -> None:
        entry = self.entries.get(name)
        if entry is None:
            return
        record = entry.record
        if record.first_scheduled_ns is None:
            record.first_scheduled_ns = start
            record.num_cached_tokens = num_computed
        elif len(record.resumed_ns) < len(record.preempted_ns):
            record.resumed_ns.append(start)
        entry.computed = num_computed
        entry.left = record.num_prompt_tokens + len(record.token_times_ns) - num_computed
        self._prefilling[name] = entry

    def _prefill(self, name: str, num: int) -> None:
        entry = self._prefilling[name]
        done = entry.computed + num
        again = min(done, entry.high_water) - entry.computed
        if again > 0:
            entry.record.num_recomputed_tokens += again
        entry.computed = done
        entry.left -= num
        if entry.left <= 0:
            del self._prefilling[name]

    def _evict(self, name: str, start: int) -> None:
        entry = self.entries.get(name)
        if entry is None:
            return
        self._alight(entry)
        record = entry.record
        if self._prefilling.pop(name, None) is None:  # a decode has computed all but its last token
            entry.computed = record.num_prompt_tokens + len(record.token_times_ns) - 1
        entry.high_water = max(entry.high_water, entry.computed)
        if not record.preempted_ns:
            record.preempted_ns, record.resumed_ns = array("q"), array("q")
        record.preempted_ns.append(start)
        record.num_preemptions += 1

    def _end(self, entry: Entry, reason: str, now: int) -> None:
        self._alight(entry)
        record = entry.record
        del self.entries[entry.name]
        self._prefilling.pop(entry.name, None)
        record.num_output_tokens = len(record.token_times_ns)
        record.finish_reason, record.finish_ns = reason, now
        record.status = status_of(reason, was_scheduled=record.first_scheduled_ns is not None)
        self.ended(entry)


def status_of(reason: str, *, was_scheduled: bool) -> Status:
    """What became of a request that ended for this reason."""
    if reason == "abort":
        return "aborted"
    if reason == "error":
        return "failed" if was_scheduled else "refused"
    return "finished"
