"""A request: what the caller asked for, and what has become of it so far.

Policies read these attributes; only the core writes them. A token is *pending* while it is known but its K and V are
not computed: the whole prompt of a new request, one token of a decode, everything again after a preemption.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from batchwright.errors import InvalidRequestError
from batchwright.sampling_params import SamplingParams
from batchwright.standing import FINISHED as FINISHED
from batchwright.standing import NEW as NEW
from batchwright.standing import PREEMPTED as PREEMPTED
from batchwright.standing import RESIDENT as RESIDENT
from batchwright.standing import WAITING as WAITING
from batchwright.standing import Standing
from batchwright.token_ids import DeferredTokens, Prompt, TokenIds, pack_tokens

if TYPE_CHECKING:
    from batchwright.logprobs import TokenLogprobs
    from batchwright.prefix_index import Run
    from batchwright.roster import Roster

UNKNOWN = -1
"""A token, or the time of one, that was sampled and is not known yet: with overlap the next step is scheduled first."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_ZERO = array("i", [0])


@dataclass(frozen=True, slots=True)
class SLO:
    """What a caller calls good service: seconds to the first token, and seconds between tokens on average."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class Request(Standing):
    """One request.

    Attributes:
        request_id: unique in its engine.
        sampling_params: as given by the caller.
        arrival_ns: when it arrived, in nanoseconds of the engine's clock.
        arrival_index: its place in the order of arrival, from 0; -1 before it is added.
        num_prompt_tokens: length of the prompt.
        num_tokens: prompt and output tokens so far.
        num_computed: tokens whose K and V are in its blocks; 0 while it waits. While an offer of a waiting
            request is decided, its prefix hit counts as computed.
        num_cached: tokens of its last admission that the prefix cache held.
        num_scheduled: tokens in the batch of the present step; 0: it is not in it.
        num_preemptions: times it was evicted.
        num_recomputed: tokens computed again because of evictions.
        first_scheduled_ns, first_token_ns, last_token_ns: None until it happens.
        finish_reason: once finished: ``stop``, ``length``, ``trace``, ``abort`` or ``error``.
        error: what went wrong, where the reason is ``error``.
        block_table: ids of its KV blocks, in order.
        max_tokens: output tokens at most: as declared, cut to what ``max_model_len`` leaves.
        priority: lower goes first.
        client_id, session_id, program_id: whom it belongs to.
        weight: of its client, for fair policies.
        deadline_s: when its answer should be complete, in seconds of the engine's clock.
        slo: its service objective.
        predicted_output_tokens: somebody's guess of its output length.
        extra: anything else the caller wants policies to see.

    Raises:
        InvalidRequestError: a field is out of its range.
    """

    __slots__ = (
        "_admission",
        "_computed",
        "_deferred",
        "_due",
        "_end",
        "_entry",
        "_first_token_ns",
        "_hashes",
        "_high_water",
        "_hit_key",
        "_hits",
        "_known",
        "_last_token_ns",
        "_logprobs",
        "_num_registered",
        "_offset",
        "_prefilling",
        "_room",
        "_roster",
        "_row",
        "_run",
        "_scheduled",
        "_seed",
        "_state",
        "_stop_check",
        "_stop_ids",
        "_unmade",
        "arrival_index",
        "arrival_ns",
        "block_table",
        "client_id",
        "deadline_s",
        "error",
        "extra",
        "finish_reason",
        "first_scheduled_ns",
        "max_tokens",
        "num_cached",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed",
        "predicted_output_tokens",
        "priority",
        "program_id",
        "request_id",
        "sampling_params",
        "session_id",
        "slo",
        "weight",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Prompt | DeferredTokens,
        sampling_params: SamplingParams | None = None,
        *,
        arrival_ns: int = 0,
        priority: int = 0,
        client_id: str | None = None,
        weight: float = 1.0,
        deadline_s: float | None = None,
        slo: SLO | None = None,
        predicted_output_tokens: int | None = None,
        session_id: str | None = None,
        program_id: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequestError(f"request_id must be a non-empty string, not {request_id!r}")
        if sampling_params is not None and not isinstance(sampling_params, SamplingParams):
            raise InvalidRequestError(f"sampling_params must be a SamplingParams object, not {sampling_params!r}")
        if not isinstance(priority, int):
            raise InvalidRequestError(f"priority must be a whole number, not {priority!r}")
        if not isinstance(weight, (int, float)) or not weight > 0:
            raise InvalidRequestError(f"weight must be a number above 0, not {weight!r}")
        guess = predicted_output_tokens
        if guess is not None and (not isinstance(guess, int) or guess < 0):
            raise InvalidRequestError(f"predicted_output_tokens must be a whole number of at least 0, not {guess!r}")
        # Its tokens, as far as they do not stand in the roster; in the place of those that are made later stand zeros.
        self._known: array[int]
        self._unmade: list[tuple[int, int]] | None = None  # ranges of these
        self._deferred: DeferredTokens | None = None  # its prompt, where that is one of them
        if isinstance(prompt_token_ids, DeferredTokens):
            self._known, self._deferred = _ZERO * len(prompt_token_ids), prompt_token_ids
            self._unmade = [(0, len(prompt_token_ids))]
        else:
            self._known = pack_tokens(prompt_token_ids)
        self.request_id = request_id
        self.sampling_params = sampling_params if sampling_params is not None else SamplingParams()
        self.arrival_ns = arrival_ns
        self.priority = priority
        self.client_id = client_id
        self.weight = weight
        self.deadline_s = deadline_s
        self.slo = slo
        self.predicted_output_tokens = predicted_output_tokens
        self.session_id = session_id
        self.program_id = program_id
        self.extra: Mapping[str, Any] = MappingProxyType(dict(extra)) if extra else _NOTHING
        self.max_tokens = self.sampling_params.max_tokens
        self.arrival_index = -1
        self.num_prompt_tokens = len(self._known)
        self.num_cached = 0
        self.num_preemptions = self.num_recomputed = 0
        self.first_scheduled_ns: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.block_table: list[int] = []
        # Core-private from here on: set by the scheduler and the block manager.
        self._state = NEW
        self._prefilling = False
        self._room = 0  # tokens that its blocks have room for
        self._end = 0  # it finishes when num_tokens reaches this
        self._computed = 0
        self._scheduled = 0
        self._first_token_ns: int | None = None
        self._last_token_ns: int | None = None
        self._admission = 0  # number of its last admission
        self._roster: Roster  # of its scheduler; set when it is added
        self._row = -1  # of the roster; -1: it is not on it
        self._entry = 0  # length with which it entered the roster
        self._offset = 0  # its length, less the steps of the roster
        self._due = 0  # steps of the roster after which it must be looked at
        self._stop_ids: frozenset[int] = frozenset()
        self._stop_check: Any = None  # called with each sampled token where there are stop strings
        self._seed = 0
        # Of each output token, where the caller wants them.
        self._logprobs: list[TokenLogprobs] | None = [] if self.sampling_params.logprobs is not None else None
        self._high_water = 0  # most tokens it ever had computed: below it, computing is recomputing
        self._hashes: list[int] = []  # of its full blocks, chained, each computed once
        self._num_registered = 0  # of its blocks, in the prefix cache
        self._run: Run | None = None  # its blocks that it registered, known to each of them
        self._hits = array("i")  # the last prefix look-up, and the state of the cache it was true in
        self._hit_key: Any = None

    # A step of decodes is the step that counts. Of a request on the roster it changes nothing: what follows from the
    # number of steps, or is the same for all, is not written into each.

    @property
    def _tokens(self) -> array[int]:
        """All its tokens."""
        if self._row >= 0:
            self._roster.settle(self)
        if self._unmade is not None:
            self._make_tokens()
        return self._known

    def _make_tokens(self) -> None:
        """Make those that nobody has read before."""
        unmade, self._unmade = self._unmade or (), None
        num_prompt = self.num_prompt_tokens
        for first, last in unmade:
            made: Any
            if self._deferred is not None and not first:
                made = self._deferred.make()
            else:
                made = self._roster.draw(self._seed, first - num_prompt, last - first)
            self._known[first:last] = array("i", np.asarray(made, dtype=np.int32).tobytes())

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self._known) if self._row < 0 else self._roster.steps + self._offset

    @property
    def num_computed(self) -> int:
        """Tokens whose K and V are in its blocks; of a decode all but the last."""
        if self._state == RESIDENT and not self._prefilling:
            return self.num_tokens - 1
        return self._computed

    @num_computed.setter
    def num_computed(self, value: int) -> None:
        self._computed = value

    @property
    def num_scheduled(self) -> int:
        """Tokens in the batch of the present step; 0: it is not in it."""
        return 1 if self._row >= 0 and self._admission <= self._roster.advancing_to else self._scheduled

    @num_scheduled.setter
    def num_scheduled(self, value: int) -> None:
        self._scheduled = value

    @property
    def first_token_ns(self) -> int | None:
        """When its first token came; None before it."""
        if self._first_token_ns == UNKNOWN:
            self._wait()
        return self._first_token_ns if self._first_token_ns != UNKNOWN else None

    @first_token_ns.setter
    def first_token_ns(self, value: int | None) -> None:
        self._first_token_ns = value

    @property
    def _last_ns(self) -> int | None:
        """When its last token came, or ``UNKNOWN``."""
        if self._row >= 0 and self.num_tokens > self._entry:
            return self._roster.last_ns
        return self._last_token_ns

    @property
    def last_token_ns(self) -> int | None:
        """When its last token came; None before the first."""
        last = self._last_ns
        if last == UNKNOWN:
            self._wait()
            last = self._last_ns
        return last if last != UNKNOWN else None

    @last_token_ns.setter
    def last_token_ns(self, value: int | None) -> None:
        self._last_token_ns = value

    @property
    def is_prefilling(self) -> bool:
        """Resident, and has sampled no token since its admission."""
        return self._prefilling

    @property
    def is_decode(self) -> bool:
        """Resident and not prefilling: exactly one token is pending."""
        return self._state == RESIDENT and not self._prefilling

    @property
    def prompt_token_ids(self) -> TokenIds:
        """The prompt, read-only."""
        if self._unmade is not None:
            self._make_tokens()
        return TokenIds(self._known, 0, self.num_prompt_tokens)

    @property
    def output_token_ids(self) -> TokenIds:
        """The output so far, read-only."""
        tokens = self._tokens
        if tokens[-1] == UNKNOWN:
            self._wait()
        return TokenIds(tokens, self.num_prompt_tokens, len(tokens) - (tokens[-1] == UNKNOWN))

    def _wait(self) -> None:
        """With overlap: wait for what was sampled last."""
        if self._roster.wait is not None:
            self._roster.wait()

    def __repr__(self) -> str:
        state = ("new", "waiting", "resident", "preempted", "finished")[self._state]
        return (
            f"<Request {self.request_id!r} {state}, {self.num_prompt_tokens}+{self.num_output_tokens} tokens, "
            f"{self.num_computed} computed, {self.num_scheduled} scheduled>"
        )


BY_ADMISSION = attrgetter("_admission")
"""Sorts requests by the order in which they were admitted."""
