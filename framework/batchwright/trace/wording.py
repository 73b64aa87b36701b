"""Reasons in words: one, or several alike of consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchwright.trace.reason import Reason

_SHOWN = 3


def alike(one: Reason, other: Reason) -> bool:
    """Whether two reasons say the same but for numbers and other requests, so that they can be told as one."""
    return _key(one) == _key(other)


def _key(reason: Reason) -> tuple[object, ...]:
    itself = reason.kind == "evicted" and not reason.other
    return (
        reason.kind,
        reason.hook,
        reason.by,
        reason.over,
        reason.is_repeated,
        reason.lacking,
        reason.error,
        itself,
    )


def say_why(reasons: Sequence[Reason]) -> str:
    """A phrase for one reason, or for several that are alike: numbers become ranges."""
    return _SAY[reasons[0].kind](reasons)


def _decode(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    what = "decode, 1 token each" if len(reasons) > 1 else "decode, 1 token"
    if first.is_repeated:
        return f"{what}; repeated: {first.by} is stationary, and was not asked again"
    return f"{what}; offered by {_who(first)}"


def _prompt(reasons: Sequence[Reason]) -> str:
    return f"{_range(r.num_tokens for r in reasons)} tokens, all that was pending{_hit(reasons)}; {_offered(reasons)}"


def _chunk(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    each = " in each step" if len(reasons) > 1 else ""
    much = f"{_range(r.num_tokens for r in reasons)} of {_range(r.num_pending for r in reasons)} pending tokens{each}"
    rest = ", all that was left of the budget" if all(r.num_tokens == r.budget for r in reasons) else ""
    return f"{much}{rest}{_hit(reasons)}; cut by chunking of {_who(first)}"


def _not_offered(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    whose = f"admission of {_who(first)}"
    if not any(r.other for r in reasons):
        return f"not offered room; {whose} offered nobody any"
    others = list(dict.fromkeys(r.other for r in reasons if r.other))
    names = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} others" if len(others) > _SHOWN else "")
    if len(others) > 1:
        return f"not offered room; {whose} ended before it, after {names}"
    outcomes = {_OUTCOMES.get(r.other_kind, "") for r in reasons}
    what = next(iter(outcomes)) if len(outcomes) == 1 else ""
    return f"not offered room; {whose} ended after {names}{', which ' + what if what else ''}"


_OUTCOMES = {
    "decode": "ran",
    "prompt": "ran",
    "chunk": "ran",
    "batch_full": "found the batch full",
    "no_budget": "found no budget left",
    "chunk_zero": "chunking gave no tokens",
    "hold": "found no room",
    "evicted": "was evicted",
    "went_along": "was evicted",
}


def _withheld(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    return f"{first.over} offered it room, and {first.by}, which wraps its admission, left it out"


def _batch_full(reasons: Sequence[Reason]) -> str:
    return f"offered room when the batch was full ({_range(r.num_needed for r in reasons)} requests: max_num_seqs)"


def _no_budget(reasons: Sequence[Reason]) -> str:
    return "offered room when no token of the budget was left"


def _chunk_zero(reasons: Sequence[Reason]) -> str:
    pending, budget = _range(r.num_pending for r in reasons), _range(r.budget for r in reasons)
    return f"chunking of {_who(reasons[0])} gave it 0 of {pending} pending tokens, with {budget} left in the budget"


def _hold(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    nobody = f"preemption of {_who(first)} evicted nobody for it"
    if first.lacking == "seats":
        return f"no seat was free (max_num_residents); {nobody}"
    needed, free = _range(r.num_needed for r in reasons), _range(r.num_free for r in reasons)
    return f"it needed {needed} block{'s' if needed != '1' else ''}, {free} free; {nobody}"


def _evicted(reasons: Sequence[Reason]) -> str:
    first = reasons[0]
    who = f"preemption of {_who(first)} named it"
    if not first.other:
        return f"evicted, as it lacked {first.lacking} itself: {who}"
    names = ", ".join(dict.fromkeys(r.other for r in reasons))
    return f"evicted for {names}, which lacked {first.lacking}: {who}"


def _went_along(reasons: Sequence[Reason]) -> str:
    return f"evicted along with {reasons[0].other}, since it shared a block which that one was to fill"


def _retried(reasons: Sequence[Reason]) -> str:
    return "evicted, since the backend failed; it is computed again"


def _undone(reasons: Sequence[Reason]) -> str:
    return f"the step was undone: {reasons[0].error}"


_SAY: dict[str, Callable[[Sequence[Reason]], str]] = {
    "decode": _decode,
    "prompt": _prompt,
    "chunk": _chunk,
    "not_offered": _not_offered,
    "withheld": _withheld,
    "batch_full": _batch_full,
    "no_budget": _no_budget,
    "chunk_zero": _chunk_zero,
    "hold": _hold,
    "evicted": _evicted,
    "went_along": _went_along,
    "retried": _retried,
    "undone": _undone,
}


def _who(reason: Reason) -> str:
    return f"{reason.by}, in place of {reason.over}" if reason.over else reason.by


def _offered(reasons: Sequence[Reason]) -> str:
    return f"offered by {_who(reasons[0])}"


def _hit(reasons: Sequence[Reason]) -> str:
    hits = [r.num_cached for r in reasons if r.is_admitted]
    return f" beside {_range(hits)} cached" if any(hits) else ""


def _range(values: object) -> str:
    found = sorted(set(values))  # type: ignore[call-overload]
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
