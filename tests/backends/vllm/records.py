"""vLLM's own scheduler, recorded: python tests/backends/vllm/records.py MODEL FOLDER"""

from __future__ import annotations

import sys

from small_vllm import scheduler_of, small_engine


def main(model: str, folder: str) -> None:
    """Ten requests that begin alike, of three clients."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    section = {"policy": "observe", "record": folder, "trust_requests": True}
    llm = small_engine(model, "guest", section, async_scheduling=None, max_num_seqs=8, max_num_batched_tokens=256)
    shared = list(range(1000, 1064))
    prompts = [{"prompt_token_ids": [*shared, *range(2000 + 100 * i, 2030 + 100 * i)]} for i in range(10)]
    params = [
        SamplingParams(
            temperature=0, max_tokens=6 + i, ignore_eos=True, extra_args={"batchwright_client_id": f"client-{i % 3}"}
        )
        for i in range(10)
    ]
    llm.generate(prompts, params, use_tqdm=False)
    assert type(scheduler_of(llm)).__name__ in ("Scheduler", "AsyncScheduler")
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
