"""A scheduler of vLLM's kind, stock or ours in its place, and who drives and checks it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]
from vllm.v1.engine import FinishReason  # pyright: ignore[reportMissingImports]
from vllm.v1.request import Request  # pyright: ignore[reportMissingImports]

from backends.vllm.small_grammars import EOS, VOCAB, Grammar, GrammarBackend
from backends.vllm.workers import Workers, next_token
from peers_vllm import Vllm, host

BLOCK = 16
POLICIES = ("vllm_v1", "prefill_first", "stall_free:chunk_size=24", "vtc", "priority", "sjf", "mlfq", "no_evict", "lpm")


class Run:
    """A scheduler of vLLM's kind, driven as its engine drives it."""

    def __init__(self, peer: Vllm, seed: int = 0) -> None:
        self.peer, self.core = peer, peer.core
        self.workers = Workers(BLOCK, VOCAB, seed)
        self.told: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.stops: dict[str, Any] = {}

    def add(
        self,
        name: str,
        prompt: Iterable[int],
        max_tokens: int,
        priority: int = 0,
        *,
        grammar: Grammar | Future[Grammar] | None = None,
        **params: Any,
    ) -> Request:
        """Add a request; its grammar is compiled, or will be."""
        if grammar is not None:
            params["structured_outputs"] = StructuredOutputsParams(regex="its grammar")
            self.core.structured_output_manager.backend = GrammarBackend
        given = SamplingParams(max_tokens=max_tokens, temperature=0, **params)
        given.update_from_generation_config({}, eos_token_id=EOS)
        request = Request(name, list(prompt), given, None, priority=priority, block_hasher=self.peer._hasher)
        if grammar is not None:
            request.structured_output_request.grammar = grammar
        self.core.add_request(request)
        return request

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        told = self.core.schedule()
        self.workers.forward(told)
        output = self.workers.sample(self.core.get_grammar_bitmask(told))
        between()
        self.update(told, output)

    def update(self, told: Any, output: Any) -> None:
        for outputs in self.core.update_from_output(told, output).values():
            for one in outputs.outputs:
                self.told.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    assert one.request_id not in self.ends
                    self.ends[one.request_id] = one.finish_reason
                    self.stops[one.request_id] = one.stop_reason

    def finish(self) -> None:
        for _ in range(5000):
            if not self.core.has_requests():
                return
            self.step()
        raise AssertionError("it does not come to an end")


def stock(num_blocks: int, max_num_seqs: int, budget: int) -> Run:
    return Run(Vllm(num_blocks, BLOCK, max_num_seqs, budget))


def ours(policy: str, num_blocks: int, max_num_seqs: int, budget: int) -> Run:
    return Run(host(policy, num_blocks, BLOCK, max_num_seqs, budget))


def answer(prompt: list[int], max_tokens: int, *, ignore_eos: bool, grammar: Grammar | None = None) -> list[int]:
    """What the "model" says to a prompt when nobody else is there; ``grammar`` is a new one."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        is_open = grammar is not None and not grammar.is_terminated()
        tokens.append(next_token(tokens, VOCAB, grammar.allowed() if grammar is not None and is_open else None))
        if grammar is not None:
            assert grammar.accept_tokens("alone", tokens[-1:])
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


def load(seed: int, num: int = 12) -> list[tuple[str, list[int], int, int, bool]]:
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    rows = []
    for i in range(num):
        prompt = shared[: rng.choice((0, 16, 33, 40))] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 90))]
        rows.append((f"r{i}", prompt, rng.randint(1, 60), rng.randint(0, 2), rng.random() < 0.5))
    return rows


def offer(run: Run, row: tuple[str, list[int], int, int, bool]) -> None:
    name, prompt, max_tokens, priority, ignore_eos = row
    run.add(name, prompt, max_tokens, priority, ignore_eos=ignore_eos)


def check_answers(run: Run, rows: Iterable[tuple[str, list[int], int, int, bool]]) -> None:
    for name, prompt, max_tokens, _, ignore_eos in rows:
        expected = answer(prompt, max_tokens, ignore_eos=ignore_eos)
        assert run.told[name] == expected
        stopped = expected[-1] == EOS and not ignore_eos
        assert run.ends[name] == (FinishReason.STOP if stopped else FinishReason.LENGTH)
    assert run.core.get_kv_cache_usage() == 0
    assert run.core.get_request_counts() == (0, 0)
