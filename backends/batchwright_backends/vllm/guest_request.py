"""What a policy sees of a request of vLLM's: the names of ours, read from theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from batchwright.standing import RESIDENT, WAITING, Standing

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.request import SLO, Request


class Riding:
    """Decodes that are in a batch as a whole, a token each; one for all guests, so that nothing is written into each.

    Attributes:
        guests: who rides now.
    """

    __slots__ = ("guests",)

    def __init__(self) -> None:
        """Nobody rides."""
        self.guests: Collection[Guest] = ()


class Guest(Standing):
    """One request; attributes as of :class:`~batchwright.request.Request`.

    Attributes:
        theirs: vLLM's request.
        table: gives the ids of its blocks.
        riding: who rides; shared by all.
        hit: tokens of it that the prefix cache holds, while an offer of it is decided.
    """

    __slots__ = (
        "_scheduled",
        "_state",
        "arrival_index",
        "arrival_ns",
        "client_id",
        "deadline_s",
        "error",
        "extra",
        "finish_reason",
        "first_scheduled_ns",
        "first_token_ns",
        "hit",
        "last_token_ns",
        "max_tokens",
        "num_cached",
        "num_prompt_tokens",
        "num_recomputed",
        "predicted_output_tokens",
        "priority",
        "program_id",
        "request_id",
        "riding",
        "sampling_params",
        "session_id",
        "slo",
        "table",
        "theirs",
        "weight",
    )

    def __init__(self, theirs: VllmRequest, ours: Request, arrival_index: int, table: Any, riding: Riding) -> None:
        """Takes vLLM's request, and what is to be said of it for policies."""
        self.theirs = theirs
        self.table = table
        self._state = WAITING
        self.hit = 0
        self.riding = riding
        self._scheduled = 0
        self.request_id: str = theirs.request_id
        self.num_prompt_tokens: int = theirs.num_prompt_tokens
        self.max_tokens: int = ours.sampling_params.max_tokens
        self.sampling_params = ours.sampling_params
        self.arrival_index = arrival_index
        self.arrival_ns = ours.arrival_ns
        self.priority = ours.priority
        self.client_id = ours.client_id
        self.weight = ours.weight
        self.deadline_s = ours.deadline_s
        self.slo: SLO | None = ours.slo
        self.predicted_output_tokens = ours.predicted_output_tokens
        self.session_id = ours.session_id
        self.program_id = ours.program_id
        self.extra = ours.extra
        self.num_cached = self.num_recomputed = 0
        self.first_scheduled_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far; with asynchronous scheduling also those that are being sampled."""
        theirs = self.theirs
        return int(theirs.num_tokens + theirs.num_output_placeholders)

    @property
    def num_computed(self) -> int:
        """Tokens whose K and V are in its blocks, or in those that it would adopt."""
        return int(self.theirs.num_computed_tokens) + self.hit

    @property
    def num_preemptions(self) -> int:
        """Times it was evicted."""
        return int(self.theirs.num_preemptions)

    @property
    def num_scheduled(self) -> int:
        """Tokens in the batch of the present step; 0: it is not in it."""
        return self._scheduled or int(self in self.riding.guests)

    @num_scheduled.setter
    def num_scheduled(self, value: int) -> None:
        self._scheduled = value

    @property
    def is_held(self) -> bool:
        """vLLM will not run it in this step: its last token is on its way, or tokens from before its eviction are."""
        theirs = self.theirs
        if self._state != RESIDENT:
            return bool(theirs.num_stale_output_tokens) and not theirs.drop_stale_output
        coming = int(theirs.num_output_placeholders)
        return coming > 0 and theirs.num_computed_tokens + 2 - coming >= theirs.num_prompt_tokens + theirs.max_tokens

    @property
    def block_table(self) -> Sequence[int]:
        """Ids of its KV blocks, in order."""
        return self.table(self.request_id) if self._state == RESIDENT else ()

    @property
    def is_prefilling(self) -> bool:
        """Resident, and has sampled no token since its admission."""
        return self._state == RESIDENT and bool(self.theirs.is_prefill_chunk)

    @property
    def is_decode(self) -> bool:
        """Resident and not prefilling."""
        return self._state == RESIDENT and not self.theirs.is_prefill_chunk

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """The prompt, read-only."""
        return self.theirs.prompt_token_ids or ()

    @property
    def output_token_ids(self) -> Sequence[int]:
        """The output so far, read-only."""
        return self.theirs.output_token_ids  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        state = ("new", "waiting", "resident", "preempted", "finished")[self._state]
        return f"<Guest {self.request_id!r} {state}, {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"
