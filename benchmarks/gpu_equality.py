"""Tokens and log-probabilities of tiny models on a device, against the same weights in float32 on the CPU."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from batchwright import Engine, EngineConfig, Request, SamplingParams, Step
from batchwright.hookspecs import hookimpl
from batchwright_backends.torch import backend as backend_module
from batchwright_backends.torch.kernels.choice import KERNELS, Choice
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel

VOCABULARY = 499
NUM_TOKENS = 12
LENGTHS = (5, 23, 1, 70, 300, 38, 12)
"""Of the prompts, but for a prefix that some share: short ones, and one that FlashAttention 2 needs two blocks for."""
BACKENDS: dict[str, str] = {}
"""Of devices whose backend has another name: those that tests play."""
TOLERANCE = {"float32": (1e-4, 1e-3), "float16": (5e-3, 3e-2), "bfloat16": (4e-2, 0.2)}
"""Error of a log-probability, on average and at most, that rounding explains: on a CPU the sdpa kernel makes a fourth
of it (in float32 a hundredth), and without its window or cap several times as much."""

# Windows, caps, sinks, and K and V of different width. Where there are experts, all of them run: which one is chosen
# may hang on rounding.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 33,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
    },
    "mistral": {"sliding_window": 33},
    "gpt_oss": {"head_dim": 64, "sliding_window": 33, "num_local_experts": 2, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "n_routed_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    },
}


def make_model(name: str, folder: Path) -> Any:
    """A tiny model of that architecture, saved; its weights are representable in every dtype."""
    config = AutoConfig.for_model(
        name,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 256,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.06,
            "tie_word_embeddings": False,
            "eos_token_id": 2,
            **MODELS[name],
        },
    )
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def make_requests() -> list[Request]:
    """Some with a common prefix, so that blocks are shared."""
    rng = random.Random(0)
    common = [rng.randrange(VOCABULARY) for _ in range(270)]
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, logprobs=0)
    return [
        Request(f"r{i}", [*(common if i % 3 == 0 else []), *(rng.randrange(VOCABULARY) for _ in range(n))], params)
        for i, n in enumerate(LENGTHS)
    ]


class Seen:
    """What a run went through."""

    def __init__(self) -> None:
        self.counts = {"chunks": 0, "mixed": 0, "preemptions": 0, "hits": 0, "replays": 0}

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """Count."""
        self.counts["chunks"] += any(r.is_prefilling for r in step.batch)
        counts = [r.num_scheduled for r in step.batch]
        self.counts["mixed"] += 1 in counts and max(counts) > 1
        self.counts["preemptions"] += len(step.preempted)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """Count."""
        self.counts["hits"] += request.num_cached > 0


def errors_of(engine: Engine, model: Any, requests: Sequence[Request], seen: dict[str, int]) -> tuple[float, float]:
    """Serve the requests: the error of their log-probabilities, on average and at most."""
    runner: Any = engine.backend.runner  # type: ignore[attr-defined]
    inner = runner.forward

    def forward(step: Any) -> Any:
        seen["replays"] += step.graph is not None
        return inner(step)

    runner.forward = forward
    for request in requests:
        engine.add_request(request)
    given: dict[str, Any] = {}
    while engine.has_unfinished():
        given.update({o.request_id: o for o in engine.step()})
    errors: list[float] = []
    for request in requests:
        output = given[request.request_id]
        if output.error is not None:
            raise RuntimeError(output.error)
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, len(request.prompt_token_ids) - 1 : -1]
        expected = torch.log_softmax(logits, dim=-1)
        for token, row, got in zip(request.output_token_ids, expected, output.outputs[0].logprobs, strict=True):
            # The token must be the best but for rounding, and as likely as it says.
            errors.append(max(abs(got.logprob - float(row[token])), float(row.max() - row[token])))
    return sum(errors) / len(errors), max(errors)


def check_all(
    device: str, models: Sequence[str], kernels: Sequence[str], time_left: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """Each model with each kernel and dtype, with graphs and without.

    Yields:
        A record: what it is, ``result`` (``equal``, ``differs``, ``fails`` or ``skipped``), and why or how far.
    """
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(name, Path(folder))
            for kernel in (k for k in KERNELS if k.name in kernels or k.title in kernels):
                for dtype in TOLERANCE:
                    for graphs in (False, True):
                        record = {"model": name, "kernel": kernel.title, "dtype": dtype, "graphs": graphs}
                        if time_left() <= 0:
                            yield {**record, "result": "skipped", "why": "the time is up"}
                            continue
                        start = time.perf_counter()
                        found = _check_one(device, folder, model, kernel, dtype, graphs)
                        yield {**record, **found, "seconds": round(time.perf_counter() - start, 2)}


def _check_one(
    device: str, folder: str, model: Any, kernel: type[AttentionKernel], dtype: str, graphs: bool
) -> dict[str, Any]:
    used: dict[str, Any] = {}

    def choose(wanted: str, where: Any, kind: Any, block_size: Any, layers: Any) -> Choice:
        demand = Demand.of(where, kind, block_size, layers, is_named=True)
        reason = kernel.refusal(demand)
        if reason is None and graphs and kernel.not_captured is not None:
            reason = f"no graphs: {kernel.not_captured}"
        if reason is None and graphs and device == "cpu":
            reason = "no graphs: cpu has none"
        if reason is not None:
            raise _Skipped(reason)
        used["choice"] = Choice(kernel.make(demand), kernel.title)
        return used["choice"]

    size = kernel.default_block_size
    # So few blocks that somebody is evicted and computed again; where they are large there is room for all.
    num_blocks = 432 // size if size <= 16 else -(-900 // size)
    config = EngineConfig(
        policy="vllm_v1",
        backend=f"{BACKENDS.get(device, device)}:{folder}",
        num_blocks=num_blocks,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        backend_options={"dtype": dtype, "cuda_graphs": graphs, "check_logits": False},
    )
    watch = Seen()
    seen = watch.counts
    try:
        with mock.patch.object(backend_module, "choose", choose), Engine(config, plugins=[watch]) as engine:
            mean, most = errors_of(engine, model, make_requests(), watch.counts)
    except _Skipped as skipped:
        return {"result": "skipped", "why": str(skipped)}
    except Exception as error:  # whatever a kernel or its build does wrong is a result
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return {"result": "fails", "why": f"{type(error).__name__}: {first}"}
    finally:
        gc.collect()
    close = mean <= TOLERANCE[dtype][0] and most <= TOLERANCE[dtype][1]
    went = seen["chunks"] and seen["mixed"] and (seen["replays"] > 0) == graphs
    out = {"result": "equal" if close and went else "differs", "mean error": mean, "largest error": most, **seen}
    return out if went else {**out, "why": "the run had no chunks, no mixed batches or not the graphs it should have"}


class _Skipped(Exception):
    pass
