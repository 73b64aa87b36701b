"""A scheduler of vLLM's kind that schedules a step while the one before it is under way, and who checks it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]

from backends.vllm.runs import BLOCK, VOCAB, Run
from backends.vllm.workers import Workers
from peers_vllm import HostOfVllm, Vllm, VllmAhead

DEPTH = 2
"""Steps that vLLM's engine has under way at most."""


class AheadWorkers(Workers):
    """They execute a step when they are told of it; what it gave is asked for later."""

    def __init__(self, block_size: int, vocab: int, seed: int = 0) -> None:
        super().__init__(block_size, vocab, seed)
        self._last: set[str] = set()

    def forward(self, told: Any) -> None:
        cached = told.scheduled_cached_reqs
        for name, num in zip(cached.req_ids, cached.num_output_tokens, strict=True):
            if name not in self._last and num:  # it takes the tokens for new that it is sent
                assert cached.all_token_ids[name] == self.tokens[name]
        assert self._last.isdisjoint(cached.all_token_ids), "tokens are sent of who has them"
        self._last = set(told.num_scheduled_tokens)
        super().forward(told)


class Ahead(Run):
    """Driven as vLLM's engine drives it with a queue of batches."""

    def __init__(self, peer: Vllm, seed: int = 0) -> None:
        super().__init__(peer, seed)
        self.workers = AheadWorkers(BLOCK, VOCAB, seed)
        self.under_way: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.num_late = 0

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        core, late = self.core, None
        if core.has_requests():
            told = core.schedule()
            self.workers.forward(told)
            if told.pending_structured_output_tokens:
                late = told  # what may be sampled follows from what the step before gives
            else:
                self._sample(told)
                if len(self.under_way) < DEPTH and (told.total_num_scheduled_tokens or core.has_requests()):
                    return
        if self.under_way:
            between()
            self.update(*self.under_way.popleft())
        if late is not None:
            self.num_late += 1
            self._sample(late)

    def _sample(self, told: Any) -> None:
        self.under_way.append((told, self.workers.sample(self.core.get_grammar_bitmask(told))))

    def finish(self) -> None:
        for _ in range(5000):
            if not self.core.has_requests() and not self.under_way:
                return
            self.step()
        raise AssertionError("it does not come to an end")


def stock_ahead(num_blocks: int, max_num_seqs: int, budget: int) -> Ahead:
    return Ahead(VllmAhead(num_blocks, BLOCK, max_num_seqs, budget))


def ours_ahead(section: dict[str, Any] | str, num_blocks: int, max_num_seqs: int, budget: int) -> Ahead:
    """Under a policy, or with more of the section of settings."""
    section = {"policy": section} if isinstance(section, str) else section
    made = type("AheadHost", (HostOfVllm,), {"additional_config": {"batchwright": section}, "is_async": True})
    return Ahead(made(num_blocks, BLOCK, max_num_seqs, budget))
