"""Who ends because of a string in its text, and not because its client left.

vLLM's server finds such strings, and then ends the request in the scheduler as it ends one whose client has left: the
scheduler is not told which. Policies hear ``abort``; records say what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def stopped_by_text(params: Any, token_ids: Sequence[int], tokenizer: Any) -> bool:
    """Whether the text so far holds one of the strings that stop it.

    Args:
        params: vLLM's sampling parameters of the request; None: it has none.
        token_ids: its output so far.
        tokenizer: of the model; None: there is none, and nobody knows.
    """
    stops = getattr(params, "stop", None)
    if not stops or not token_ids or tokenizer is None:
        return False
    text = tokenizer.decode(list(token_ids), skip_special_tokens=params.skip_special_tokens)
    return any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))


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
        ours = theirs if core is None else core.get(name)
        if theirs is not None and stopped_by_text(theirs.sampling_params, ours.output_token_ids, tokenizer):
            found.append(name)
    return found
