"""Why a request did or did not run in a step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

CORE = "the core"
"""Who answers where no plugin does."""

Kind = Literal[
    "decode",
    "prompt",
    "chunk",
    "not_offered",
    "withheld",
    "batch_full",
    "no_budget",
    "chunk_zero",
    "hold",
    "evicted",
    "went_along",
    "retried",
    "undone",
]
KINDS: tuple[str, ...] = get_args(Kind)
RAN = ("decode", "prompt", "chunk")
EVICTED = ("evicted", "went_along", "retried")


@dataclass(frozen=True, slots=True)
class Reason:
    """What became of one request in one step, and what settled it.

    Attributes:
        kind: ``decode``, ``prompt`` (all that was pending ran), ``chunk`` (a part of it): it ran. ``not_offered``: the
            policy's offers ended before it; ``withheld``: the policy offered it, and a wrapper left it out;
            ``batch_full``: offered when the batch had ``max_num_seqs`` requests; ``no_budget``: offered when the budget
            was used up; ``chunk_zero``: chunking answered 0; ``hold``: seats or blocks lacked, and preemption
            evicted nobody (any more) for it. ``evicted``: preemption named it; ``went_along``: it shared a block that
            an evicted one was to fill; ``retried``: the backend failed, and it is computed again. ``undone``: the
            policy broke a rule, and the step was given up.
        hook: the decision that settled it; empty where a limit did, and no plugin was asked.
        by: the plugin that answered, ``the core`` where none did; empty where a limit settled it.
        over: the plugin whose answer ``by``, a wrapper, replaced.
        is_repeated: the policy declares itself stationary, so what it decided in the step before was repeated.
        is_admitted: it was admitted in this step.
        num_tokens: that it ran.
        num_pending: tokens pending when it was offered room, less its prefix hit.
        num_cached: its prefix hit, in tokens; at its admission.
        budget: tokens left in the budget when it was offered room.
        lacking: ``seats`` or ``blocks``, for ``hold`` and ``evicted``.
        num_needed, num_free: of these, when nobody (more) was evicted for it; for ``batch_full`` the batch's limit.
        other: id of another request: for whom it was evicted, with whom it went along, or the last one that was
            offered room (``not_offered``).
        other_kind: what became of that last one; empty where nobody was offered room.
        error: what was wrong, of a step that was undone.
    """

    kind: Kind
    hook: str = ""
    by: str = ""
    over: str = ""
    is_repeated: bool = False
    is_admitted: bool = False
    num_tokens: int = 0
    num_pending: int = 0
    num_cached: int = 0
    budget: int = 0
    lacking: str = ""
    num_needed: int = 0
    num_free: int = 0
    other: str = ""
    other_kind: str = ""
    error: str = ""

    @property
    def ran(self) -> bool:
        """It was in the batch."""
        return self.kind in RAN

    @property
    def was_evicted(self) -> bool:
        """It lost its blocks in this step."""
        return self.kind in EVICTED

    def to_json(self) -> dict[str, Any]:
        """The fields that are not empty."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Reason:
        """What ``to_json`` gave; names that this version does not know are left out.

        Raises:
            TypeError, ValueError: it is no reason.
        """
        if values.get("kind") not in KINDS:
            raise ValueError(f"kind is {values.get('kind')!r}; known are {', '.join(KINDS)}")
        known = {f.name: type(f.default) for f in fields(cls) if f.name != "kind"}
        taken: dict[str, Any] = {name: value for name, value in values.items() if name in known}
        for name, value in taken.items():
            if type(value) is not known[name]:
                raise TypeError(f"{name} is {value!r}")
        return cls(cast(Kind, values["kind"]), **taken)

    def __str__(self) -> str:
        from batchwright.trace.wording import say_why

        return say_why([self])
