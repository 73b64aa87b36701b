"""Taking what a batch gave: computed tokens, sampled tokens, and who is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchwright.errors import BackendError
from batchwright.request import RESIDENT, Request
from batchwright.state import State
from batchwright.step import Step

Over = list[tuple[Request, str]]
"""Requests that end with this step and why, in batch order."""


def append_all(state: State, step: Step, tokens: Sequence[int], now: int, over: Over) -> Sequence[Request]:
    """A batch of decodes: each has computed its last token and gets the next. Returns who got one."""
    requests: Sequence[Request] = step.batch
    if len(tokens) != len(requests):
        raise BackendError(f"the backend gave {len(tokens)} tokens for a batch of {len(requests)} decodes")
    growing: list[Request] = []
    filling: list[Request] = []
    # Whether any of these tokens could stop anybody is asked once, not for each.
    watched = state.num_stop_checks or not state.stop_ids.isdisjoint(tokens)
    if state.aborted_in_flight:
        pairs = [(r, t) for r, t in zip(requests, tokens, strict=True) if r._state == RESIDENT]
        requests = [r for r, _ in pairs]
        tokens = [t for _, t in pairs]
    for request, token in zip(requests, tokens, strict=True):
        length = request.num_tokens
        request.num_computed = length
        request._tokens.append(token)
        request.num_tokens = length + 1
        request.last_token_ns = now
        if watched or length >= request._event:  # a block edge or its end, known since the last one
            if state.late:
                state.blocks.register(request, length)
            reason = _stops(request, token)
            if reason is not None:
                over.append((request, reason))
                continue
            set_event(state, request)
            if length >= request._room:
                growing.append(request)
            if (length + 1) % state.blocks.block_size == 0:
                filling.append(request)
    if step._whole and len(requests) == len(state.residents):
        state.growing, state.filling = growing, filling
    return requests


def set_event(state: State, request: Request) -> None:
    """Find the length at which a decode next needs more than one more token.

    That is where a block is full: it is registered, and another is needed; one token before that where blocks are
    registered as they are scheduled; and where the request ends.
    """
    size, length = state.blocks.block_size, request.num_tokens
    edge = -(-length // size) * size
    if state.early:
        edge = min(edge, (length + size) // size * size - 1)
    request._event = min(edge, request._end - 1)


def append_each(
    state: State, step: Step, tokens: Sequence[int], now: int, failed: Mapping[str, str], over: Over
) -> Sequence[Request]:
    """Any batch: chunks of prompts too, and rows that failed. Returns who got a token."""
    requests = step.batch
    rows = [r.num_computed + r.num_scheduled == r.num_tokens for r in requests]
    if sum(rows) != len(tokens):
        raise BackendError(f"the backend gave {len(tokens)} tokens for a batch with {sum(rows)} rows that sample")
    given = iter(tokens)
    sampled: list[Request] = []
    for request, samples in zip(requests, rows, strict=True):
        token = next(given) if samples else -1
        if request._state != RESIDENT:
            continue  # aborted meanwhile
        if request.request_id in failed:
            request.error = failed[request.request_id]
            over.append((request, "error"))
            continue
        old, new = request.num_computed, request.num_computed + request.num_scheduled
        request.num_computed = new
        if old < request._high_water:
            again = min(new, request._high_water) - old
            request.num_recomputed += again
            step.num_recomputed += again
        if state.late:
            state.blocks.register(request, new)
        if not samples:
            continue
        edge = request._prefilling or new >= request._event
        if request._prefilling:
            request._prefilling = False
            del state.prefilling[request]
        request._tokens.append(token)
        request.num_tokens += 1
        request.last_token_ns = now
        if request.first_token_ns is None:
            request.first_token_ns = now
        sampled.append(request)
        reason = _stops(request, token)
        if reason is not None:
            over.append((request, reason))
        elif edge:
            set_event(state, request)
    return sampled


def _stops(request: Request, token: int) -> str | None:
    if token in request._stop_ids:
        return "stop"
    if request._stop_check is not None:
        try:
            if request._stop_check(token):
                return "stop"
        except Exception as error:  # its text cannot be made: that is this request's fault alone
            request.error = f"looking for stop strings failed: {type(error).__name__}: {error}"
            return "error"
    if request.num_tokens < request._end:
        return None
    return "length" if request.num_output_tokens >= request.max_tokens else "trace"
