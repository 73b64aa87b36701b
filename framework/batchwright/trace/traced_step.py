"""One step as it was: a record that keeps nothing of the engine alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from batchwright.outputs import RequestOutput
from batchwright.trace.reason import Reason


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request in one step.

    Attributes:
        request_id: its id.
        state: before the step: ``waiting``, ``prefilling`` or ``decode``.
        reason: what became of it and what settled that.
        num_prompt_tokens: length of its prompt.
        num_tokens: prompt and output tokens before the step.
        num_computed: tokens in its blocks before this step's were computed; after an admission its prefix hit.
        num_scheduled: tokens in the batch; 0: it is not in it.
        num_cached: tokens of its last admission that the prefix cache held: the first ``num_cached // block_size`` of
            its blocks are hits.
        block_table: ids of its KV blocks when the batch was complete, in order.
        num_preemptions: times it was evicted, this step included.
        max_tokens: output tokens at most.
        arrival_index: its place in the order of arrival, from 0.
        arrival_ns: when it arrived, in nanoseconds of the engine's clock.
        priority: lower goes first.
        client_id: whom it belongs to.
        finish_reason: of one that ended with this step, else None.
    """

    request_id: str
    state: Literal["waiting", "prefilling", "decode"]
    reason: Reason
    num_prompt_tokens: int
    num_tokens: int
    num_computed: int
    num_scheduled: int
    num_cached: int
    block_table: tuple[int, ...]
    num_preemptions: int
    max_tokens: int
    arrival_index: int
    arrival_ns: int
    priority: int
    client_id: str | None
    finish_reason: str | None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens before the step."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_pending(self) -> int:
        """Tokens pending before the step; those of a prefix hit that it adopted are not."""
        return self.num_tokens - self.num_computed


@dataclass(frozen=True)
class TracedStep:
    """One step.

    Attributes:
        index: number of the step, from 0.
        now, end: its start and end in nanoseconds of the engine's clock; an undone step has no end.
        policy: name of the policy in force.
        how: ``policy``: it was asked; ``repeat``: it declares itself stationary, and what it decided last was repeated;
            ``fallback``: it broke a rule, and the default policy built the step.
        error: that rule; empty where none was broken.
        is_undone: nobody built the step in its place: nothing ran, and who was evicted stays so.
        max_num_batched_tokens: the token budget of a step.
        budget: what was left of it.
        max_num_seqs: requests of a batch at most.
        num_blocks, block_size: of the pool.
        free_blocks: blocks that nobody held when the batch was complete.
        cached: bytes[num_blocks]: not 0 where a block has content that look-ups find, held or free; of that moment too.
        waiting, running: ids in queue order, before the step.
        batch: ids in batch order.
        preempted: victims in order of eviction.
        finished: id to finish reason, in batch order.
        arrived: ids that came since the last step that was traced.
        requests: everybody who was there: waiting ones in queue order, then residents in order of admission.
        outputs: what the step brought to callers; empty where a scheduler is traced alone.
    """

    index: int
    now: int
    end: int | None
    policy: str
    how: Literal["policy", "repeat", "fallback"]
    error: str
    is_undone: bool
    max_num_batched_tokens: int
    budget: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    free_blocks: int
    cached: bytes
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    batch: tuple[str, ...]
    preempted: tuple[str, ...]
    finished: Mapping[str, str]
    arrived: tuple[str, ...]
    requests: tuple[TracedRequest, ...]
    outputs: tuple[RequestOutput, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, TracedRequest]:
        """Request id to the request."""
        return {request.request_id: request for request in self.requests}

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Request id to what became of it and why."""
        return {request.request_id: request.reason for request in self.requests}

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return sum(request.num_scheduled for request in self.requests)

    @property
    def num_decodes(self) -> int:
        """Decodes in the batch."""
        return sum(request.reason.kind == "decode" for request in self.requests)
