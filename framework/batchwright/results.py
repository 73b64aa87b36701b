"""Taking what a batch gave: computed tokens, sampled tokens, and who is done."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from batchwright.backend import Draw, StepResult
from batchwright.errors import BackendError, BatchwrightError
from batchwright.logprobs import TokenLogprobs, keep_logprobs
from batchwright.request import BY_ADMISSION, RESIDENT, UNKNOWN, Request
from batchwright.state import State
from batchwright.step import Step

_FEW = 200
"""Ids whose largest is found sooner by a loop."""

_NO_FAILURES: Mapping[str, str] = MappingProxyType({})

Packed = NDArray[np.uint32]


class DeferredResult(StepResult):
    """What a backend gives where nobody needed the tokens: who reads them, while it is told of the step, draws them."""

    __slots__ = ("_draw", "_sampled")

    def __init__(self, step: Step, draw: Draw) -> None:
        self.elapsed_ns = (step.end or step.now) - step.now
        self.failed, self.logprobs = _NO_FAILURES, None
        self._sampled, self._draw = step.sampled, draw

    @property
    def token_ids(self) -> Sequence[int]:
        """One sampled token for each row that samples."""
        return [int(self._draw(r._seed, r.num_output_tokens - 1, 1)[0]) for r in self._sampled]

    @token_ids.setter
    def token_ids(self, value: Sequence[int]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass


Over = list[tuple[Request, str]]
"""Requests that end with this step and why, in batch order."""


def checked_tokens(token_ids: Sequence[int], vocab_size: int) -> tuple[array[int], Packed]:
    """What a backend sampled, as a sequence of ints and as an array of the same memory.

    Raises:
        BackendError: something is no token id, or outside the vocabulary.
    """
    try:
        given = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
        ids = array("I", given)  # checks type, sign and size of all at once
    except (TypeError, OverflowError) as error:
        raise BackendError(f"the backend gave something else than token ids: {error}") from None
    packed = np.frombuffer(ids, dtype=np.uint32)
    if ids and (max(given) if type(given) is list and len(given) < _FEW else int(packed.max())) >= vocab_size:
        raise BackendError(f"the backend gave token ids of {min(ids)} to {max(ids)}; allowed is [0, {vocab_size})")
    return ids, packed


def rows_that_sample(step: Step) -> list[Request]:
    """The rows of a scheduled batch that get a token, in its order; those aborted since among them."""
    others, samples = _others(step)
    return [*step.batch[: step._num_riding], *(r for r, ends in zip(others, samples, strict=True) if ends)]


def _others(step: Step) -> tuple[Sequence[Request], Sequence[bool]]:
    """The rows that are not of the roster, and whether each samples."""
    riding = step._num_riding
    if riding == len(step.batch):
        return (), ()
    others = step.batch[riding:]
    return others, [
        (not r._prefilling and r._state == RESIDENT) or r._computed + r._scheduled == len(r._known) for r in others
    ]


def unknown_tokens(num: int) -> tuple[array[int], Packed]:
    """Tokens of as many rows that are not known yet, in the form of ``checked_tokens``."""
    return array("i", [UNKNOWN]) * num, np.full(num, UNKNOWN, dtype=np.int32).view(np.uint32)


def take_results(
    state: State,
    step: Step,
    ids: array[int],
    packed: Packed,
    now: int,
    failed: Mapping[str, str],
    over: Over,
    logprobs: Sequence[TokenLogprobs | None] | None = None,
) -> Sequence[Request]:
    """Give each row what was sampled for it. Returns who got a token, in batch order.

    Raises:
        BackendError: too few or too many tokens, or log-probabilities lack that are wanted; nothing was touched.
    """
    if failed and step._num_riding:
        state.disband(step)
    riding = step._num_riding
    others, samples = _others(step)
    expected = riding + sum(samples)
    if expected != len(ids):
        raise BackendError(f"the backend gave {len(ids)} tokens for a batch with {expected} rows that sample")
    if logprobs is not None and len(logprobs) != expected:
        raise BackendError(f"the backend gave {len(logprobs)} log-probabilities for {expected} rows that sample")
    if state.num_logprobs and ids and ids[0] != UNKNOWN:
        rows = rows_that_sample(step)
        keep_logprobs([r if r._state == RESIDENT and r.request_id not in failed else None for r in rows], logprobs)
    sampled: Sequence[Request] = advance(state, step, ids, packed, now, over) if riding else ()
    step._num_advanced = len(sampled)
    if others:
        sampled = [*sampled, *append_each(state, step, others, samples, ids[riding:], now, failed, over)]
    return sampled


def take_deferred(state: State, step: Step, draw: Draw, now: int, over: Over) -> Sequence[Request]:
    """``take_results`` where nobody needs the tokens now: who reads them draws them. Nobody can stop with one."""
    riding = step._num_riding
    others, samples = _others(step)
    sampled: Sequence[Request] = step.batch[:riding] if others else step.batch
    step._num_advanced = riding
    if riding:
        state.roster.draw = draw
        ending = state.roster.advance_deferred(now)
        if ending:
            over += [(request, why_at_its_end(request)) for request in ending]
    if others:
        tokens = [draw(r._seed, r.num_output_tokens, 1)[0] for r, ends in zip(others, samples, strict=True) if ends]
        sampled = [*sampled, *append_each(state, step, others, samples, tokens, now, {}, over)]
    return sampled


def advance(state: State, step: Step, ids: array[int], packed: Packed, now: int, over: Over) -> Sequence[Request]:
    """The first rows, decodes on the roster: each has computed its last token and gets the next."""
    roster, num = state.roster, step._num_riding
    requests: Sequence[Request] = step.batch
    if num != len(requests):
        requests, ids, packed = requests[:num], ids[:num], packed[:num]
    if step._aborted:
        here = [place for place, request in enumerate(requests) if request._row >= 0]
        requests, ids, packed = [requests[i] for i in here], array(ids.typecode, [ids[i] for i in here]), packed[here]
    ending = roster.advance(packed, now) if requests else []
    # Whether any of these tokens could stop anybody is asked once, not for each.
    if state.stop_ids and not state.stop_ids.isdisjoint(ids):
        stopped = {r for r, token in zip(requests, ids, strict=True) if token in r._stop_ids}
        ending = sorted(stopped.union(ending), key=BY_ADMISSION)
    going_on = []
    for request in ending:
        roster.settle(request)
        reason = _ends(request, request._known[-1])
        if reason is not None:
            over.append((request, reason))
        else:
            going_on.append(request)
    if going_on:
        roster.go_on(going_on)
    return requests


def append_each(
    state: State,
    step: Step,
    requests: Sequence[Request],
    samples: Sequence[bool],
    tokens: Sequence[int],
    now: int,
    failed: Mapping[str, str],
    over: Over,
) -> Sequence[Request]:
    """Any rows: chunks of prompts too, and rows that failed. Returns who got a token."""
    if len(tokens) != len(requests):
        given = iter(tokens)
        tokens = [next(given) if ends else -1 for ends in samples]
    sampled: list[Request] = []
    late, blocks, size = state.late, state.blocks, state.blocks.block_size
    for request, ends, token in zip(requests, samples, tokens, strict=True):
        if request._state != RESIDENT:
            continue  # aborted meanwhile
        if failed and request.request_id in failed:
            request.error = failed[request.request_id]
            over.append((request, "error"))
            continue
        known = request._known
        if not request._prefilling:  # a decode: what it has computed follows from its length
            if late and not len(known) % size:
                blocks.register(request, len(known))
        else:
            old, new = request._computed, request._computed + request._scheduled
            request._computed = new
            if old < request._high_water:
                again = min(new, request._high_water) - old
                request.num_recomputed += again
                step.num_recomputed += again
            if late:
                blocks.register(request, new)
            if not ends:
                continue
            request._prefilling = False
            del state.prefilling[request]
            if request._first_token_ns is None:
                request._first_token_ns = now
        known.append(token)
        request._last_token_ns = now
        sampled.append(request)
        if len(known) >= request._end or token in request._stop_ids or request._stop_check is not None:
            reason = _ends(request, token)
            if reason is not None:
                over.append((request, reason))
    return sampled


def _ends(request: Request, token: int) -> str | None:
    """Why a request ends with a token, if it does; with one that is not known yet, whatever it is."""
    reason = stops(request, token) if token != UNKNOWN else None
    if reason is not None or request.num_tokens < request._end:
        return reason
    return why_at_its_end(request)


def why_at_its_end(request: Request) -> str:
    """Why a request ends that has all its tokens."""
    return "length" if request.num_output_tokens >= request.max_tokens else "trace"


def stops(request: Request, token: int) -> str | None:
    """Why a token stops its request, if it does. Asked once of each token, since it takes text further."""
    if token in request._stop_ids:
        return "stop"
    if request._stop_check is not None:
        try:
            if request._stop_check(token):
                return "stop"
        except BatchwrightError as error:  # whoever looks at its tokens says what is wrong with them
            request.error = str(error)
            return "error"
        except Exception as error:  # its text cannot be made: that is this request's fault alone
            request.error = f"looking for stop strings failed: {type(error).__name__}: {error}"
            return "error"
    return None
