"""Drives a torch backend by hand: batches built from requests, blocks from a trivial allocator, no scheduler."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from batchwright.batch import Batch
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright_backends.torch.backend import TorchBackend
from batchwright_backends.torch.runner import Prepared


class Driver:
    """Rows and blocks of a backend, moved by the test."""

    def __init__(self, backend: TorchBackend, seed: int = 0) -> None:
        self.backend = backend
        capacity = backend.capacity()
        self.block_size = capacity.block_size
        self.free = list(range(capacity.num_blocks))
        random.Random(seed).shuffle(self.free)  # tables that ascend would hide a kernel that ignores them
        self.owners: dict[int, int] = {}
        self.failed: dict[str, str] = {}
        self.logits: dict[str, list[torch.Tensor]] = {}
        self.num_steps = 0
        self._captured: list[torch.Tensor] = []
        inner = backend.runner.forward

        def capture(step: Prepared) -> torch.Tensor:
            out = inner(step)
            self._captured = list(out.float().clone())  # a graph writes the next step's logits in the same place
            return out

        backend.runner.forward = capture  # type: ignore[method-assign]

    def request(self, name: str, prompt: Sequence[int], params: SamplingParams | None = None, seed: int = 0) -> Request:
        request = Request(name, prompt, params or SamplingParams(temperature=0.0))
        request._seed = seed
        return request

    def share(self, source: Request, target: Request) -> int:
        """Give ``target`` the full blocks of its prompt that ``source`` has computed, all but its last token."""
        assert not target.block_table
        same = 0
        limit = min(source.num_computed, target.num_tokens - 1)
        while same < limit and source._tokens[same] == target._tokens[same]:
            same += 1
        blocks = source.block_table[: same // self.block_size]
        for block in blocks:
            self.owners[block] += 1
        target.block_table = list(blocks)
        target.num_computed = len(blocks) * self.block_size
        return len(blocks)

    def evict(self, request: Request) -> None:
        for block in request.block_table:
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.append(block)
        request.block_table = []
        request.num_computed = 0

    def step(self, rows: Sequence[tuple[Request, int]]) -> list[str]:
        """Run one batch; returns the ids of the requests that sampled."""
        for request, count in rows:
            need = -(-(request.num_computed + count) // self.block_size)
            while len(request.block_table) < need:
                block = self.free.pop(0)
                self.owners[block] = 1
                request.block_table.append(block)
        batch = Batch(self.num_steps, self.block_size, [r for r, _ in rows], [c for _, c in rows])
        result = self.backend.execute(batch)
        assert result.elapsed_ns > 0
        self.num_steps += 1
        self.failed.update(result.failed)
        tokens, logits = list(result.token_ids), list(self._captured)
        sampled = []
        for request, count in rows:
            done = request.num_computed + count == request.num_tokens
            request.num_computed += count
            if done:
                request._tokens.append(tokens.pop(0))
                self.logits.setdefault(request.request_id, []).append(logits.pop(0))
                sampled.append(request.request_id)
        assert not tokens
        return sampled

    def run(self, requests: Sequence[Request], num_tokens: int, chunk: int | None = None, stagger: int = 1) -> None:
        """Serve all requests to that many output tokens.

        Every ``stagger`` steps one more request joins, so prompts, chunks of at most ``chunk`` tokens and decodes mix.
        """
        at = 0
        while pending := [r for r in requests if r.num_output_tokens < num_tokens]:
            joined = [r for r in requests[: at // stagger + 1] if r in pending] if stagger else pending
            self.step([(r, min(r.num_pending, chunk or r.num_pending)) for r in joined])
            at += 1


_references: weakref.WeakKeyDictionary[Any, dict[tuple[tuple[int, ...], int], list[int]]] = weakref.WeakKeyDictionary()


def reference(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Greedy tokens of ``model.generate()``, which ends nowhere early; each computed once."""
    known = _references.setdefault(model, {})
    key = (tuple(prompt), num_tokens)
    if key not in known:
        ids = torch.tensor([list(prompt)])
        model.generation_config.eos_token_id = None
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        known[key] = list(out[0, len(prompt) :].tolist())
    return known[key]


def reference_logits(model: Any, tokens: Sequence[int], num_prompt: int) -> torch.Tensor:
    """Logits from which each output token of the whole sequence was chosen: [outputs, vocabulary]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits[num_prompt - 1 : -1].float()
