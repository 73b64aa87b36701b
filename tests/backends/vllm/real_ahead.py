"""``real.py`` with vLLM's asynchronous scheduling: its scheduler, and its model runner, on a CPU.

vLLM switches that off on a CPU. Here it is on, and in the place of what only a GPU has, streams and events of CUDA,
stands nothing: a CPU has computed what it was told to when the next thing is.
"""

from __future__ import annotations

import contextlib
import gc
import random
from typing import Any

import real

from small_vllm import scheduler_of, small_engine


class Nothing:
    """A stream, or an event, where nothing is ever waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.wait_stream = self.record = self.synchronize = lambda *given: None
        self.device = "cpu"


def schedule_ahead() -> None:
    """Let vLLM schedule asynchronously where it is told to."""
    import torch
    from vllm.platforms.cpu import CpuPlatform  # pyright: ignore[reportMissingImports]

    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = cuda.current_stream = Nothing
    cuda.stream = contextlib.nullcontext
    check = CpuPlatform.check_and_update_config.__func__

    def keep(cls: Any, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(keep)


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, ask it 20 prompts, some with tokens that stop them and some with penalties, and let it go."""
    from vllm import SamplingParams

    options: dict[str, Any] = {"max_num_batched_tokens": 128, "disable_log_stats": False, "async_scheduling": True}
    if wanted["num_blocks"]:
        options["num_gpu_blocks_override"] = wanted["num_blocks"]
    adapter = None if wanted["policy"] is None else "host"
    llm = small_engine(wanted["model"], adapter, {"policy": wanted["policy"]}, **options)
    rng = random.Random(0)
    shared = [rng.randrange(1000, 20_000) for _ in range(40)]
    prompts, params = [], []
    for i in range(20):
        own = [rng.randrange(1000, 20_000) for _ in range(rng.randrange(5, 60))]
        prompts.append({"prompt_token_ids": (shared if i % 3 == 0 else []) + own})
        stops = [28, 30, 198, 253, 29889] if i % 2 else None
        some = {"logprobs": 1 if i % 5 == 0 else None, "frequency_penalty": 0.2 if i % 4 == 3 else 0.0}
        params.append(SamplingParams(temperature=0, max_tokens=rng.randrange(20, 48), stop_token_ids=stops, **some))
    outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    core, engine = scheduler_of(llm), llm.llm_engine.engine_core.engine_core
    found = {
        "tokens": [list(o.token_ids) for o in outputs],
        "reasons": [(o.finish_reason, o.stop_reason) for o in outputs],
        "logprobs": [
            [sorted((token, round(p.logprob, 3)) for token, p in place.items()) for place in o.logprobs or ()]
            for o in outputs
        ],
        "preemptions": metrics["vllm:num_preemptions"],
        "hits": metrics["vllm:prefix_cache_hits"],
        "scheduler": type(core).__name__,
        "depth": engine.batch_queue_size,
        "usage": core.get_kv_cache_usage(),
        "fallbacks": getattr(core, "num_fallbacks", {}),
    }
    engine.shutdown()
    del llm, core, engine
    gc.collect()
    return found


if __name__ == "__main__":
    schedule_ahead()
    real.run = run
    real.main()
