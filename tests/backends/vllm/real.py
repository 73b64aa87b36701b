"""One run of a real model in vLLM, in a process of its own: prints what came out as a JSON object.

python tests/backends/vllm/real.py MODEL '{"scheduler": "host", "policy": "vtc", "num_blocks": 40}'
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
        **options,
    )
    rng = random.Random(0)
    shared = [rng.randrange(1000, 20_000) for _ in range(40)]
    prompts, params = [], []
    for i in range(24):
        own = [rng.randrange(1000, 20_000) for _ in range(rng.randrange(5, 150))]
        prompts.append({"prompt_token_ids": (shared if i % 3 == 0 else []) + own})
        wants = 1 if i % 5 == 0 else None
        params.append(SamplingParams(temperature=0, max_tokens=rng.randrange(4, 60), logprobs=wants))
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
        "usage": core.get_kv_cache_usage(),
        "fallbacks": getattr(core, "num_fallbacks", {}),
    }


if __name__ == "__main__":
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    print("\n" + json.dumps(run(sys.argv[1], json.loads(sys.argv[2]))))
