"""The fast scheduler and the reference, driven alike and compared after every move."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from batchwright.backend import Ahead
from batchwright.errors import BatchwrightError, PolicyError
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.testing.reference import Reference
from batchwright.testing.reference_view import View
from testing.random_policy import RandomPolicy, ids, look


def next_token(tokens: Sequence[int]) -> int:
    """A made-up greedy model over three tokens."""
    return zlib.crc32(array("i", tokens).tobytes()) % 3


def expected_output(request: Request, stops_after: int | None) -> list[int]:
    """What that model says to the request's prompt, alone and without any scheduler."""
    tokens = list(request.prompt_token_ids)
    while len(tokens) < request._end:
        tokens.append(next_token(tokens))
        if tokens[-1] in request._stop_ids or len(tokens) == request.num_prompt_tokens + (stops_after or 10**9):
            break
    return tokens[request.num_prompt_tokens :]


class Counting(Reference):
    """A reference that counts how often the rare paths are taken."""

    def __init__(self, policy: Any, seen: Counter[str], **settings: Any) -> None:
        self.seen = seen
        super().__init__(policy, **settings)

    def evict(self, step: View, victim: Request, asker: Request | None) -> None:
        before, was_in_batch = len(step.preempted), victim in step.batch
        super().evict(step, victim, asker)
        self.seen["evictions"] += len(step.preempted) - before
        self.seen["evictions that take others along"] += len(step.preempted) - before > 1
        self.seen["evictions from the batch"] += was_in_batch
        self.seen["evictions of the asker"] += victim is asker

    def fit(self, step: View, request: Request, is_newcomer: bool) -> bool:
        done = super().fit(step, request, is_newcomer)
        self.seen["offers begun anew"] += not done
        self.seen["rows with a prefix hit"] += request in step.batch and is_newcomer and request.num_cached > 0
        return done


def arrays_of(batch: Any) -> dict[str, Any]:
    """All that a backend may read of a batch, but for seeds: the reference makes none."""
    names = ("num_scheduled", "num_computed", "context_lens", "query_starts", "samples", "is_decode")
    more = ("token_ids", "positions", "block_tables", "slots", "output_indices")
    sampling = {f.name: getattr(batch.sampling, f.name).tolist() for f in fields(batch.sampling) if f.name != "seed"}
    return {name: getattr(batch, name).tolist() for name in (*names, *more)} | sampling


class Twins:
    """Two schedulers that must agree.

    Attributes:
        fast, reference: the two.
        there: unfinished requests, the fast one's and the reference's, by id.
        seen: how often what matters happened.
    """

    def __init__(self, make_policy: Callable[[], Any], settings: Mapping[str, Any], seen: Counter[str]) -> None:
        self.settings = settings
        self.seen = seen
        self.policies = [(make_policy(), make_policy())]
        self.fast = Scheduler(self.policies[0][0], **settings)
        self.reference = Counting(self.policies[0][1], seen, **settings)
        self.there: dict[str, tuple[Request, Request]] = {}
        self.stops_after: dict[str, int | None] = {}
        self.written: dict[tuple[int, int], tuple[int, ...] | None] = {}  # (block, offset): what its K and V depend on
        self.rows: list[tuple[Request, tuple[int, ...], tuple[int, ...], int, int]] = []
        self.agree()

    # Moves --------------------------------------------------------------------------------------------------

    def both(self, move: Callable[[Any, int], Any]) -> tuple[Any, Any] | None:
        """Make a move on both; None if both refused it alike."""
        answers: list[Any] = []
        for which, scheduler in enumerate((self.fast, self.reference)):
            try:
                answers.append(move(scheduler, which))
            except BatchwrightError as error:
                rule = (error.hook, error.rule, error.step) if isinstance(error, PolicyError) else None
                answers.append((type(error), rule))
        failed = [isinstance(a, tuple) and isinstance(a[0], type) for a in answers]
        if any(failed):
            assert answers[0] == answers[1]
            self.seen[f"errors: {answers[0][0].__name__}"] += 1
            return None
        return answers[0], answers[1]

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        hidden: int | None,
        priority: int,
        stops_after: int | None,
    ) -> None:
        now = self.seen["steps"]
        twins = [Request(request_id, prompt, params, arrival_ns=now, priority=priority) for _ in range(2)]

        def add(scheduler: Any, which: int) -> None:
            request = twins[which]

            def check(_token: int) -> bool:
                return stops_after is not None and request.num_output_tokens >= stops_after

            scheduler.add(request, num_output_tokens=hidden, stop_check=check if stops_after else None)

        if self.both(add) is not None:
            self.there[request_id] = (twins[0], twins[1])
            self.stops_after[request_id] = stops_after
        self.agree()

    def abort(self, request_id: str, error: str | None = None) -> None:
        done = self.both(lambda s, _: s.abort(request_id, error=error))
        assert (done is not None) == (request_id in self.there)
        self.there.pop(request_id, None)
        self.agree()

    def swap(self, make_policy: Callable[[], Any]) -> None:
        pair = (make_policy(), make_policy())
        self.policies.append(pair)
        self.both(lambda s, which: s.swap_policy(pair[which]))
        self.agree()

    def schedule(self, now: int) -> tuple[Any, Any] | None:
        """Build a step on both."""
        if not self.there:
            assert not self.fast.has_unfinished()
            assert not self.reference.has_unfinished()
            return None
        self.seen["steps"] += 1
        batches = self.both(lambda s, _: s.schedule(now))
        fast, reference = self.fast.step, self.reference.step
        assert ids(fast.preempted) == ids(reference.preempted)
        assert ids(fast.batch) == ids(reference.batch)
        assert [r.num_scheduled for r in fast.batch] == [r.num_scheduled for r in reference.batch]
        assert (fast.budget, fast.num_residents) == (reference.budget, reference.num_residents)
        self.agree()
        if batches is None:
            assert not fast.batch
            return None
        assert fast.batch or fast.preempted
        assert batches[0].samples.tolist() == batches[1].samples.tolist()
        self.bounds(fast)
        if self.seen["steps"] % 3 == 0:
            assert arrays_of(batches[0]) == arrays_of(batches[1])
        # The tokens are the reference's: those of the fast one are looked at now and then, since looking settles them.
        self.rows = [
            (one, tuple(two._tokens), tuple(one.block_table), one.num_computed, one.num_scheduled)
            for one, two in zip(fast.batch, reference.batch, strict=True)
        ]
        return batches

    def write(self, failing: Sequence[str]) -> dict[str, str]:
        """Execute the last batch on made-up K and V; returns the rows whose result cannot be trusted.

        A cell holds the tokens that its K and V depend on; None is garbage. Rows that attend to garbage fail too; any
        other wrong cell is a stale or missing block. A row that was aborted meanwhile is executed.
        """
        size = self.settings["block_size"]

        def cells(table: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
            return [(table[i // size], i % size) for i in range(start, end)]

        for r, tokens, table, start, n in self.rows:
            for i, cell in enumerate(cells(table, start, start + n), start):
                self.written[cell] = None if r.request_id in failing else tokens[: i + 1]
        wrong: dict[str, str] = {}
        for r, tokens, table, start, n in self.rows:
            context = [self.written.get(cell) for cell in cells(table, 0, start + n)]
            if None in context:
                assert failing, f"{r} attends to blocks that nobody wrote"
                wrong[r.request_id] = "NaN"
            else:
                assert context == [tokens[: i + 1] for i in range(start + n)], f"{r} attends to stale blocks"
        for r, _, table, start, n in self.rows:
            if r.request_id in wrong:  # garbage in, garbage out
                self.written.update(dict.fromkeys(cells(table, start, start + n)))
        return wrong

    def update(self, batches: tuple[Any, Any], now: int, failing: Sequence[str] = ()) -> None:
        """Take what the made-up model samples; the rows in ``failing`` give NaN."""
        tokens = [next_token(tokens) for _, tokens, _, start, n in self.rows if start + n == len(tokens)]
        failed = self.write(failing)
        self.seen["rows failed"] += len(failed)
        self.both(lambda s, which: s.update(batches[which], tokens, now, failed))
        self.finish()

    def leap(self, now: int, most: int) -> int:
        """Take up to ``most`` steps at once with the fast one, and one by one with the reference; how many it were."""
        found = self.fast.look_ahead()
        if found is None:
            return 0
        batch, bound = found
        lines = [list(two._tokens) for two in self.reference.running]
        rows = []
        for _ in range(min(most, bound)):
            rows.append([next_token(line) for line in lines])
            for line, token in zip(lines, rows[-1], strict=True):
                line.append(token)
        ends = [now + 10 * (step + 1) for step in range(len(rows))]
        told: list[int] = []
        taken = self.fast.leap(batch, Ahead(np.array(rows, dtype=np.uint32), ends), now, told.append)
        assert told == ends[taken - 1 : taken] and taken <= len(rows)
        for step, (tokens, end) in enumerate(zip(rows[:taken], ends, strict=False)):
            start = ends[step - 1] if step else now
            plain = self.reference.schedule(start)
            view = self.reference.step
            assert ids(view.batch) == ids(batch._requests) and not view.preempted
            self.rows = [
                (self.there[two.request_id][0], tuple(two._tokens), tuple(two.block_table), two.num_computed, 1)
                for two in view.batch
            ]
            assert not self.write(())
            self.reference.update(plain, tokens, end)
            assert not view.finished or step == taken - 1
            self.seen["steps"] += 1
        if taken:
            fast, reference = self.fast.step, self.reference.step
            assert (fast.index, fast.now, fast.end) == (reference.index, reference.now, reference.end)
            assert (fast.budget, fast.num_residents) == (reference.budget, reference.num_residents)
            assert ids(fast.sampled) == ids(reference.sampled)
            self.seen["leaps"] += 1
            self.seen["steps leapt"] += taken
            self.seen["steps leapt while some wait"] += taken if self.fast.waiting else 0
            self.seen["ends in a leap"] += len(fast.finished)
            self.finish()
        else:
            self.agree()
        return taken

    def fail(self, batches: tuple[Any, Any], retry: bool, now: int) -> None:
        self.write(ids(self.fast.step.batch))
        self.both(lambda s, which: s.fail(batches[which], "lost", retry=retry, now=now))
        self.seen["backend failures"] += 1
        self.finish()

    def finish(self) -> None:
        fast, reference = self.fast.step, self.reference.step
        assert ids(fast.finished) == ids(reference.finished)
        assert ids(fast.sampled) == ids(reference.sampled)
        for r in fast.finished:
            one, two = self.there.pop(r.request_id)
            assert look(one) == look(two)
            assert r.finish_reason == "error" or list(r.output_token_ids) == expected_output(
                r, self.stops_after[r.request_id]
            )
        self.agree()

    # Comparing ----------------------------------------------------------------------------------------------

    def agree(self) -> None:
        """Queues, requests, blocks and everything the policies were asked are the same; nothing is lost or leaked."""
        fast, reference = self.fast, self.reference
        assert ids(fast.waiting) == ids(reference.waiting)
        assert ids(fast.running) == ids(reference.running)
        assert {*ids(fast.waiting), *ids(fast.running)} == set(self.there)
        assert fast.has_unfinished() == reference.has_unfinished() == bool(self.there)
        assert len(fast.waiting) + len(fast.running) == len(self.there)
        for one, two in self.there.values():
            assert look(one) == look(two)
        for one, two in self.policies:
            if isinstance(one, RandomPolicy):
                assert one.log == two.log
                one.log.clear()
                two.log.clear()
        assert fast.num_policy_faults == reference.num_policy_faults
        assert fast.num_observer_faults == reference.num_observer_faults
        blocks, plain = fast.blocks, reference.blocks
        held = [block for r in fast.running for block in r.block_table]
        assert blocks.references == plain.references == [held.count(b) for b in range(blocks.num_blocks)]
        free = list(blocks.free)
        assert free == plain.free
        assert blocks.num_free == len(free)
        assert sorted(free) == sorted(set(range(blocks.num_blocks)) - set(held))
        assert {b for b in range(blocks.num_blocks) if blocks.index.registered[b]} == set(plain.content)
        for one, two in self.there.values():
            if one.is_waiting:
                hits = list(blocks.index.lookup(one)) if blocks.cache.enabled else []  # as nobody that counts looks
                assert hits == (plain.lookup(two) if blocks.cache.enabled else [])

    def bounds(self, step: Any) -> None:
        """What the core owes whatever the policy: seats, budget and room."""
        limits, policy = self.settings["limits"], self.policies[-1][0]
        exempt = not policy.budget_counts_decodes or self.fast.num_policy_faults
        tokens = sum(r.num_scheduled for r in step.batch if r.is_prefilling or not exempt)
        assert tokens <= limits.max_num_batched_tokens
        assert len(step.batch) <= limits.max_num_seqs
        assert len(self.fast.running) <= (limits.max_num_residents or 10**9)
        for r in step.batch:
            assert 1 <= r.num_scheduled <= r.num_pending
            assert len(r.block_table) * self.settings["block_size"] >= r.num_computed + r.num_scheduled
            peak = r.num_prompt_tokens + r.max_tokens - 1
            assert len(r.block_table) <= -(-peak // self.settings["block_size"])
