"""nano-vLLM's benchmark on a model with random weights: tokens a second, and where the time of a step goes.

256 requests, prompts of 100 to 1024 tokens and as many outputs, both uniform, drawn as nano-vLLM's ``bench.py`` draws
them (https://github.com/GeeeekExplorer/nano-vllm), temperature 0.6.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchwright import Engine, EngineConfig, Request, SamplingParams
from batchwright_backends.torch.backend import TorchBackend
from phases import StepTimes, medians, serving

# Qwen/Qwen3-0.6B's config.json; all that a model with random weights needs.
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": QWEN3_06B,
    "tiny": {
        **QWEN3_06B,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 12000,
        "eos_token_id": 2,
    },
}
MAX_MODEL_LEN = 4096


def make_requests(num: int, least: int, most: int) -> list[Request]:
    """Requests in nano-vLLM's order of drawing, seed 0."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, 10000) for _ in range(rng.randint(least, most))] for _ in range(num)]
    return [
        Request(f"r{i}", p, SamplingParams(max_tokens=rng.randint(least, most), temperature=0.6, ignore_eos=True))
        for i, p in enumerate(prompts)
    ]


def measure(device: str, shape: str, requests: Sequence[Request], limit_s: float, **options: Any) -> dict[str, Any]:
    """Serve the requests, for at most so long.

    Args:
        device: ``cpu`` or ``cuda``.
        shape: a key of ``SHAPES``.
        requests: all there at once.
        limit_s: after so many seconds the run is broken off, and its rate is that of what was done.
        options: of the backend.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES[shape]))
        config = EngineConfig(
            backend=f"{device}:{folder}",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=256,
            max_num_batched_tokens=16384 if device == "cuda" else 2048,
            num_blocks=None if device == "cuda" else 4096,
            backend_options={"load_format": "dummy", **options},
        )
        begun = time.perf_counter()
        engine = Engine(config)
        load_s = time.perf_counter() - begun
    with engine:
        backend = engine.backend
        assert isinstance(backend, TorchBackend)
        warm = [Request("warm-up", list(range(100, 140)), SamplingParams(max_tokens=4, ignore_eos=True))]
        engine.add_request(warm[0])
        while engine.has_unfinished():
            engine.step()
        with serving(engine, requests) as watch:
            start = time.perf_counter()
            while engine.has_unfinished() and time.perf_counter() - start < limit_s:
                watch.step()
            is_whole = not engine.has_unfinished()
        wall_s = time.perf_counter() - start
        num_tokens = sum(r.num_output_tokens for r in requests)
        return {
            "shape": shape,
            "options": options,
            "attention": str(backend.choice),
            "notes": list(backend.notes),
            "num_blocks": engine.capacity.num_blocks,
            "block_size": engine.capacity.block_size,
            "load_s": load_s,
            "num_requests": len(requests),
            "output_tokens": num_tokens,
            "seconds": wall_s,
            "output_tokens_per_s": num_tokens / wall_s,
            "ran_to_its_end": is_whole,
            "steps": _by_kind(watch.steps, wall_s),
        }


def _by_kind(steps: Sequence[StepTimes], wall_s: float) -> dict[str, Any]:
    kinds = {
        "decodes": [s for s in steps if s.is_decode],
        "with prompts": [s for s in steps if not s.is_decode],
    }
    out: dict[str, Any] = {
        kind: {"number": len(chosen), "median_rows": sorted(s.num_rows for s in chosen)[len(chosen) // 2]}
        | {f"{phase} (ms)": value for phase, value in medians(chosen).items()}
        for kind, chosen in kinds.items()
        if chosen
    }
    device = [s.device for s in steps if s.device is not None]
    # From the first to the last kernel of each step: what the device waits for within a step counts as its time.
    out["share outside the device"] = 1 - sum(device) / wall_s if device else None
    return out
