"""Who ends because of a string in its text, and not because its client left.

vLLM's server finds such strings, and then ends the request in the scheduler as it ends one whose client has left: the
scheduler is not told which. Policies hear ``abort``; records say what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_AHEAD = 64
"""Tokens that the scheduler may have got for a request before the server, in another process, ends it."""


def stopped_by_text(params: Any, token_ids: Sequence[int], tokenizer: Any) -> bool:
    """Whether the end of the text so far holds one of the strings that stop it.

    A tokenizer that fails says nothing: this is for records, and whoever is being ended ends.

    Args:
        params: vLLM's sampling parameters of the request; None: it has none.
        token_ids: its output so far.
        tokenizer: of the model; None: there is none, and nobody knows.
    """
    stops = getattr(params, "stop", None)
    stops = [stops] if isinstance(stops, str) else stops
    if not stops or not token_ids or tokenizer is None:
        return False
    most = _AHEAD + max(len(stop.encode()) for stop in stops)  # a token is a byte at least
    try:
        text = tokenizer.decode(list(token_ids[-most:]), skip_special_tokens=params.skip_special_tokens)
    except Exception:  # of whoever wrote the tokenizer
        return False
    return any(stop in text for stop in stops)


def stopped_of(scheduler: Any, names: Iterable[str]) -> list[str]:
    """Those of the unfinished requests of these names that such a string ends.

    Args:
        scheduler: vLLM's, or ours in its place.
        names: ids of requests that are about to be ended.
    """
    tokenizer = getattr(getattr(scheduler, "structured_output_manager", None), "tokenizer", None)
    core = getattr(scheduler, "core", None)
    found = []
    for name in names:
        theirs = scheduler.requests.get(name) if core is None else scheduler.their_request(name)
        ours = theirs if core is None else scheduler.our_request(name)
        if theirs is not None and stopped_by_text(theirs.sampling_params, ours.output_token_ids, tokenizer):
            found.append(name)
    return found
