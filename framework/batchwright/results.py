"""Taking what a batch gave: computed tokens, sampled tokens, and who is done."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from batchwright.errors import BackendError
from batchwright.request import RESIDENT, Request
from batchwright.state import State
from batchwright.step import Step

Over = list[tuple[Request, str]]
"""Requests that end with this step and why, in batch order."""


def checked_tokens(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """What a backend sampled, as plain ints.

    Raises:
        BackendError: something is no token id, or outside the vocabulary.
    """
    tokens: list[int] = token_ids.tolist() if isinstance(token_ids, np.ndarray) else list(token_ids)
    try:
        array("i", tokens)  # checks type and size of all at once
    except (TypeError, OverflowError) as error:
        raise BackendError(f"the backend gave something else than token ids: {error}") from None
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        low, high = min(tokens), max(tokens)
        raise BackendError(f"the backend gave token ids of {low} to {high}; allowed is [0, {vocab_size})")
    return tokens


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
    if step._whole:
        state.whole_ns = now
    else:
        state.settle_times()
        for request in requests:
            request._last_token_ns = now
    for request, token in zip(requests, tokens, strict=True):
        known = request._tokens
        known.append(token)
        if watched or len(known) > request._until:  # a block edge or its end, known since the last one
            length = len(known) - 1
            if state.late:
                state.blocks.register(request, length)
            reason = _stops(request, token)
            if reason is not None:
                over.append((request, reason))
                continue
            look_ahead(state, request)
            if length >= request._room:
                growing.append(request)
            if (length + 1) % state.blocks.block_size == 0:
                filling.append(request)
    if step._whole and len(requests) == len(state.residents):
        state.growing, state.filling = growing, filling
    return requests


def look_ahead(state: State, request: Request) -> None:
    """Find up to which length a decode needs nothing but one more token a step.

    That is where a block is full: it is registered, and another is needed; one token before that where blocks are
    registered as they are scheduled; and where the request ends.
    """
    size, length = state.blocks.block_size, len(request._tokens)
    edge = -(-length // size) * size
    if state.early:
        edge = min(edge, (length + size) // size * size - 1)
    request._until = min(edge, request._end - 1)


def append_each(
    state: State, step: Step, tokens: Sequence[int], now: int, failed: Mapping[str, str], over: Over
) -> Sequence[Request]:
    """Any batch: chunks of prompts too, and rows that failed. Returns who got a token."""
    requests = step.batch
    # A decode samples; other rows do if nothing stays pending.
    rows = [
        (r._state == RESIDENT and not r._prefilling) or r._computed + r._scheduled == len(r._tokens) for r in requests
    ]
    if sum(rows) != len(tokens):
        raise BackendError(f"the backend gave {len(tokens)} tokens for a batch with {sum(rows)} rows that sample")
    given = iter(tokens)
    state.settle_times()
    sampled: list[Request] = []
    for request, samples in zip(requests, rows, strict=True):
        token = next(given) if samples else -1
        if request._state != RESIDENT:
            continue  # aborted meanwhile
        if request.request_id in failed:
            request.error = failed[request.request_id]
            over.append((request, "error"))
            continue
        old = request._computed if request._prefilling else len(request._tokens) - 1
        new = old + (request._scheduled or 1)
        request._computed = new
        if old < request._high_water:
            again = min(new, request._high_water) - old
            request.num_recomputed += again
            step.num_recomputed += again
        if state.late:
            state.blocks.register(request, new)
        if not samples:
            continue
        edge = request._prefilling or new >= request._until
        if request._prefilling:
            request._prefilling = False
            del state.prefilling[request]
        request._tokens.append(token)
        request.last_token_ns = now
        if request.first_token_ns is None:
            request.first_token_ns = now
        sampled.append(request)
        reason = _stops(request, token)
        if reason is not None:
            over.append((request, reason))
        elif edge:
            look_ahead(state, request)
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
