"""Whether a request can ever run here: one predicate that decides when it is submitted."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np

from batchwright.active_policy import ActivePolicy
from batchwright.block_manager import BlockManager
from batchwright.errors import InfeasibleRequestError, InvalidRequestError, PluginError
from batchwright.limits import Limits
from batchwright.request import NEW, Request


class Feasibility:
    """The bounds that a request must keep.

    Attributes:
        chunks: whether the active policy cuts prompts.
    """

    def __init__(self, limits: Limits, blocks: BlockManager, vocab_size: int | None) -> None:
        self._limits = limits
        self._num_blocks = blocks.num_blocks
        self._block_size = blocks.block_size
        self._vocab_size = vocab_size
        self.chunks = True

    def check(self, request: Request, taken: Container[str], num_output_tokens: int | None) -> int:
        """Check a new request; returns its max_tokens, cut to what ``max_model_len`` leaves.

        Raises:
            InvalidRequestError: its id is taken, a token id is outside the vocabulary, or it was added before.
            InfeasibleRequestError: it could never fit; the message gives its numbers.
        """
        who = f"request {request.request_id!r}"
        if request._state != NEW:
            raise InvalidRequestError(f"{who} was added before: make a new Request for each submission")
        if request.request_id in taken:
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use by an unfinished request")
        length = num_output_tokens
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
            raise InvalidRequestError(f"{who}: num_output_tokens must be a whole number of at least 1, not {length!r}")
        deferred = request._deferred
        if self._vocab_size is not None and (deferred is None or deferred.vocab_size > self._vocab_size):
            highest = int(np.frombuffer(request._tokens, dtype=np.int32).max())
            if highest >= self._vocab_size:
                raise InvalidRequestError(
                    f"{who}: prompt_token_ids must be in [0, {self._vocab_size}), the model's vocabulary, "
                    f"and {highest} is among them"
                )
        prompt, max_tokens = request.num_prompt_tokens, request.sampling_params.max_tokens
        longest = self._limits.max_model_len
        if longest is not None:
            if prompt >= longest:
                raise InfeasibleRequestError(
                    f"{who}: its prompt has {prompt} tokens and max_model_len is {longest}, which leaves no room for "
                    "an output token; shorten the prompt or raise max_model_len"
                )
            max_tokens = min(max_tokens, longest - prompt)
        # The last sampled token needs no K and V: nobody attends to it.
        peak = prompt + max_tokens - 1
        need = -(-peak // self._block_size)
        if need > self._num_blocks:
            raise InfeasibleRequestError(
                f"{who}: {prompt} prompt tokens and max_tokens {max_tokens} need {need} KV blocks of "
                f"{self._block_size} at their peak and the pool has {self._num_blocks}; shorten the prompt, lower "
                "max_tokens or raise num_blocks"
            )
        budget = self._limits.max_num_batched_tokens
        if not self.chunks and peak > budget:
            raise InfeasibleRequestError(
                f"{who}: the policy never cuts a prompt, and recomputing this one can take {peak} tokens in one step "
                f"(prompt {prompt} + max_tokens {max_tokens} - 1) while max_num_batched_tokens is {budget}; raise it, "
                "lower max_tokens, or use a policy that cuts prompts"
            )
        return max_tokens

    def check_policy(self, policy: ActivePolicy, requests: Iterable[Request]) -> None:
        """Whether a policy can take over these requests.

        Raises:
            PluginError: it never cuts a prompt, and one of them could exceed the budget.
        """
        budget = self._limits.max_num_batched_tokens
        for request in () if policy.chunks else requests:
            peak = request.num_prompt_tokens + request.max_tokens - 1
            if peak > budget:
                raise PluginError(
                    f"policy {policy.name!r} never cuts a prompt, and recomputing request {request.request_id!r} can "
                    f"take {peak} tokens in one step while max_num_batched_tokens is {budget}: it cannot take over "
                    "while that request is here"
                )
