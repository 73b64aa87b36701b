"""A step that is being executed, while the next one is scheduled as if each of its rows had got its token.

Of such a step all is known but what the backend has not given yet: the values of its tokens, their times, and so who
ends by a stop token or a stop string. Their places are kept by ``UNKNOWN``, and whoever reads one waits for it: a
policy or an observer sees what it would see without overlap, or makes the engine wait as it would without.

Where another program runs the loop, nobody here can wait: the results are given when they are there. Until then tokens
have the time at which their step was taken for executed, their values cannot be read, and blocks that hold one are not
found by who looks for prefixes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from batchwright.backend import StepResult
from batchwright.block_manager import BlockManager
from batchwright.errors import BackendError
from batchwright.logprobs import TokenLogprobs, keep_logprobs
from batchwright.prefix_index import PrefixIndex
from batchwright.request import FINISHED, RESIDENT, UNKNOWN, Request
from batchwright.results import Packed, checked_tokens, rows_that_sample, stops
from batchwright.step import Step

_UNKNOWN_BITS = np.array(UNKNOWN, dtype=np.int32).view(np.uint32)

if TYPE_CHECKING:
    from batchwright.batch import Batch
    from batchwright.state import State


class OverlappedStep(Step):
    """A step whose end may not be known yet; reading it waits."""

    __slots__ = ("_end", "awaited")

    def __init__(self, state: State, now: int, index: int) -> None:
        self.awaited: Awaited | None = None
        super().__init__(state, now, index)

    @property
    def end(self) -> int | None:
        """End of its execution; waits for it."""
        if self.awaited is not None:
            self.awaited.wait()
        return self._end

    @end.setter
    def end(self, value: int | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._end = value


def is_awaited(step: Step) -> bool:
    """Whether reading the end of a step would wait for it."""
    return isinstance(step, OverlappedStep) and step.awaited is not None


class AwaitedResult(StepResult):
    """What a backend will have given; reading any of it waits."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: Awaited) -> None:
        self._awaited = awaited

    @property
    def _result(self) -> StepResult:
        self._awaited.wait()
        return self._awaited.result

    @property
    def token_ids(self) -> Sequence[int]:  # type: ignore[override]
        """One sampled token for each row that samples."""
        return self._result.token_ids

    @property
    def elapsed_ns(self) -> int:  # type: ignore[override]
        """Time of the step."""
        return self._result.elapsed_ns

    @property
    def failed(self) -> Mapping[str, str]:  # type: ignore[override]
        """Rows whose result is not used."""
        return self._result.failed

    @property
    def logprobs(self) -> Sequence[TokenLogprobs | None] | None:  # type: ignore[override]
        """Log-probabilities of the tokens."""
        return self._result.logprobs


class Awaited:
    """The results of one step, from the moment it is taken for executed until they are there.

    Attributes:
        step: of these results.
        rows: those that sample, in batch order.
        ended: who ended with this step whatever its token is, and why.
        registered: blocks that were registered since the step computes them, of each request.
        put_off: rows of the step scheduled meanwhile that fill a block with a token which is not known, and those
            behind them, with the tokens up to which their blocks are to be registered.
        is_known: the values are there, and in their places.
        fault: why they will never be; None while that is not so.
        stopped: of those that got a token, who stops with it, and why; once the values are there.
        result: what the backend gave; once it is there. Before that, of results that are given, placeholders.
        told_ns: the time of these tokens until they are there: ``UNKNOWN``, or where nobody can wait, when the step
            was taken for executed.
        ahead: the step scheduled meanwhile.
        any_dropped: somebody was aborted since, and its token is not used.
    """

    def __init__(
        self,
        state: State,
        step: Step,
        batch: Batch,
        vocab_size: int,
        collect: Callable[[], StepResult] | None,
        now_ns: Callable[[], int],
    ) -> None:
        self._state = state
        self._vocab_size = vocab_size
        self._collect = collect
        self._now_ns = now_ns
        self.step = step
        self.rows = rows_that_sample(step)
        self.ahead: Step | None = None
        self.any_dropped = False
        self.ended: dict[Request, str] = {}
        self.registered: list[tuple[Request, list[int]]] = []
        self.put_off: dict[Request, int] = {}
        self.is_known = False
        self.fault: BaseException | None = None
        self.stopped: dict[Request, str] = {}
        self.told_ns = UNKNOWN if collect is not None else now_ns()
        self.result = StepResult((), 0)
        if self.is_given:
            self.result = StepResult([UNKNOWN] * len(self.rows), self.told_ns - step.now)
            step.end = self.told_ns
        self._order = batch._order  # of the first rows, on the roster
        # Of requests that end with the step the state counts nothing any more.
        self._any_checks, self._any_logprobs = bool(state.num_stop_checks), bool(state.num_logprobs)

    @property
    def is_given(self) -> bool:
        """Whether the results are given, and nobody can wait for them."""
        return self._collect is None

    @contextmanager
    def noting_blocks(self) -> Iterator[None]:
        """Meanwhile, note what is registered."""
        index = self._state.blocks.index
        assert isinstance(index, _LoggedIndex)
        index.log = self.registered
        try:
            yield
        finally:
            index.log = None

    def attach(self) -> None:
        """From now on the step counts as executed."""
        state = self._state
        state.awaited = self
        state.roster.wait = self.wait
        if isinstance(self.step, OverlappedStep):
            self.step.awaited = self
        if state.early and isinstance(state.blocks, OverlappedBlocks):
            state.blocks.before_lookup = self.catch_up

    def detach(self) -> None:
        """The results are settled."""
        self._state.awaited = None
        if isinstance(self._state.blocks, OverlappedBlocks):
            self._state.blocks.before_lookup = None

    def drop_token(self, request: Request) -> None:
        """A request was aborted: it does not get the token that is on its way, unless it has it already."""
        if request in self.rows:
            self.any_dropped = True
            if not self.has_token(request):
                self.forget_token(request)

    def forget_token(self, request: Request) -> None:
        """The token that was on its way to a request never came."""
        if request._known[-1] == UNKNOWN:
            request._known.pop()
        if request._first_token_ns == self.told_ns:
            request._first_token_ns = None
        if request._last_token_ns == self.told_ns:
            first = request._first_token_ns  # of the last token that came nothing is known but that it came between
            request._last_token_ns = max(first, self.step.now) if first is not None else None

    def has_token(self, request: Request) -> bool:
        """Whether the values are there, and one of them is this request's."""
        return self.is_known and request in self.rows and request.request_id not in self.result.failed

    def lives(self, request: Request) -> bool:
        """Whether a row's token has anybody to take it: not where the request was aborted."""
        return request._state != FINISHED or request in self.ended

    def wait(self) -> None:
        """Wait for the results and put them in their places; who stops goes on until they are settled.

        Nothing is waited for where they are given.
        """
        if self.is_known or self.fault is not None or self._collect is None:
            return
        try:
            result = self._collect()
            self._take(result, self._now_ns())
        except Exception as error:
            self.fault = error
        except BaseException as error:  # an interrupt: what was collected is lost
            self.fault = error
            raise
        finally:
            self._arrived(self._now_ns())

    def give(self, result: StepResult, now: int) -> None:
        """Here are the results: put them in their places; who stops goes on until they are settled.

        Args:
            result: what the backend gave.
            now: nanoseconds of the engine's clock, after the execution.

        Raises:
            BackendError: it is not as it must be; nothing was touched.
        """
        self._take(result, now)
        self._arrived(now)

    def _arrived(self, now: int) -> None:
        self._state.roster.wait = None
        if isinstance(self.step, OverlappedStep):
            self.step.awaited = None
        self.step.end = now

    def _take(self, result: StepResult, now: int) -> None:
        """Fill in what was unknown.

        Raises:
            BackendError: the result is not as it must be; nothing was touched.
        """
        rows = self.rows
        ids, packed = checked_tokens(result.token_ids, self._vocab_size)
        if len(ids) != len(rows):
            raise BackendError(f"the backend gave {len(ids)} tokens for a batch with {len(rows)} rows that sample")
        if result.logprobs is not None and len(result.logprobs) != len(rows):
            raise BackendError(
                f"the backend gave {len(result.logprobs)} log-probabilities for {len(rows)} rows that sample"
            )
        failed = result.failed
        if self._any_logprobs:
            takers = [r if self.lives(r) and r.request_id not in failed else None for r in rows]
            keep_logprobs(takers, result.logprobs)
        for place, request in enumerate(rows) if failed else ():
            if request.request_id in failed:
                packed[place] = _UNKNOWN_BITS  # its token is never known
        self._fill_in(packed, now)
        self.result = result
        self.is_known = True
        self._find_stopped(ids, failed)

    def _fill_in(self, packed: Packed, now: int) -> None:
        roster, rows, order = self._state.roster, self.rows, self._order
        places: Sequence[int] = range(len(order), len(rows))  # of those who must be looked at one by one
        if roster.order is not order and len(order):  # somebody came or went
            riders = roster.riders_of(order)
            stayed = np.array([r is rider for r, rider in zip(rows, riders, strict=False)], dtype=np.bool_)
            places = [*np.flatnonzero(~stayed).tolist(), *places]
            roster.put_last(order[stayed], packed[: len(order)][stayed])
        elif len(order):
            roster.put_last(order, packed[: len(order)])
        for place in places:
            request = rows[place]
            if packed[place] != _UNKNOWN_BITS and self.lives(request):
                self._fill_in_one(request, int(packed[place]), now)
        for request in roster.tokens.take_settled():
            if request._row >= 0 and (token := roster.last_token_of(request)) != UNKNOWN:
                self._fill_in_one(request, token, now)  # it took over its tokens, this one too, and is still there
        if roster.last_ns == self.told_ns:
            roster.last_ns = now

    def _fill_in_one(self, request: Request, token: int, now: int) -> None:
        if request._known[-1] == UNKNOWN:
            request._known[-1] = token
        if request._row >= 0:
            self._state.roster.put_last_of(request, token)
        if request._last_token_ns == self.told_ns:
            request._last_token_ns = now
        if request._first_token_ns == self.told_ns:
            request._first_token_ns = now

    def _find_stopped(self, ids: array[int], failed: Mapping[str, str]) -> None:
        stop_ids = self._state.stop_ids
        if not self._any_checks and (not stop_ids or stop_ids.isdisjoint(ids)):
            return
        for request, token in zip(self.rows, ids, strict=True):  # of rows that failed nothing is looked at
            if (token in request._stop_ids or request._stop_check is not None) and self.lives(request):
                reason = stops(request, token) if request.request_id not in failed else None
                if reason is not None:
                    self.stopped[request] = reason

    # The step scheduled meanwhile -----------------------------------------------------------------------------

    def puts_off(self, request: Request, num_tokens: int) -> bool:
        """Whether a row's full blocks are not to be registered now.

        That of a decode ends with the unknown token; those behind it are registered in their turn, since the order
        says which of equal blocks answers; where nobody can wait they are not, since none of these is found before. And
        what a late row would fill is never computed.
        """
        if self.is_known:
            return request in self.stopped
        is_next = bool(self.put_off) and not self.is_given
        if is_next or (not request._prefilling and num_tokens % self._state.blocks.block_size == 0):
            self.put_off[request] = num_tokens
            return True
        return False

    def fill(self, requests: Iterable[Request], fresh: dict[Request, list[int]]) -> None:
        """``Roster.fill``, or put off until the tokens are known."""
        if self.is_known:
            self._state.roster.fill([r for r in requests if r not in self.stopped], fresh)
        else:
            self.put_off.update((r, r.num_tokens) for r in requests)

    def catch_up(self) -> None:
        """Register what was put off: somebody looks for blocks, or the values are there."""
        if not self.put_off:
            return
        self.wait()
        if not self.is_known and self.fault is None:
            return  # nobody can wait: it is not found yet
        put_off, self.put_off = self.put_off, {}
        if not self.is_known:
            return
        state, step = self._state, self.ahead
        assert step is not None
        for request, num_tokens in put_off.items():
            if request._state != RESIDENT or not request.num_scheduled or request in self.stopped:
                continue
            if request._row >= 0:
                state.roster.fill([request], step._fresh)
            else:
                fresh = state.blocks.register(request, num_tokens)
                if fresh:
                    step._fresh[request] = fresh


class _LoggedIndex(PrefixIndex):
    """One that says what was registered while a step was taken for executed, in case it turns out not to be."""

    log: list[tuple[Request, list[int]]] | None = None

    def register(self, request: Request, num_tokens: int) -> list[int]:
        """See ``PrefixIndex``."""
        new = super().register(request, num_tokens)
        if self.log is not None and new:
            self.log.append((request, new))
        return new

    def register_next(self, request: Request, tokens: bytes) -> list[int]:
        """See ``PrefixIndex``."""
        new = super().register_next(request, tokens)
        if self.log is not None and new:
            self.log.append((request, new))
        return new


class OverlappedBlocks(BlockManager):
    """A pool whose look-ups first catch up with what was put off."""

    index_class = _LoggedIndex
    index: _LoggedIndex
    before_lookup: Callable[[], None] | None = None

    def lookup(self, request: Request) -> array[int]:
        """See ``BlockManager``."""
        if self.before_lookup is not None:
            self.before_lookup()
        return super().lookup(request)
