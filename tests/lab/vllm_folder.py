"""Writes a folder of a "real" vLLM run whose truth is known: a simulated one, in the schema of a real one's files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.kernel_tables import AttentionRow
from batchwright_backends.sim.machine_file import machine_text
from batchwright_backends.sim.models import find_model

MODEL = "llama-3.1-8b"
LIMITS: dict[str, Any] = {"max_num_seqs": 12, "max_num_batched_tokens": 256, "max_model_len": 4096, "block_size": 16}
NUM_BLOCKS = 90
WORKLOAD = "synthetic:rate=30,n=40,prompt=uniform(20,300),output=uniform(10,60),seed=4"
WALL_S, MONOTONIC_S = 1_700_000_000.25, 4321.5
"""Where the two clocks of a log stand when the run starts."""

ROWS = (1, 4, 8, 12, 16, 32, 64, 128, 192, 256)


def run_truth(folder: Path, gpu: Gpu) -> RunRecord:
    """What a machine of these constants does with the workload."""
    path = folder / "truth.yaml"
    path.write_text(machine_text(MODEL, gpu.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    values = {**LIMITS, "num_blocks": NUM_BLOCKS, "policy": "vllm_v1", "backend": f"sim:{path}"}
    return run_arm(EngineConfig.parse(values), load_workload(WORKLOAD), declared="exact")


def write_log(folder: Path, run: RunRecord) -> None:
    """``requests.jsonl``, its lines in the order in which requests finished."""
    lines = []
    for r in sorted(run.requests, key=lambda r: r.token_times_ns[-1]):
        assert r.status == "finished" and r.first_scheduled_s is not None
        times = {
            "arrival_time": WALL_S + r.arrival_s,
            "queued_ts": MONOTONIC_S + r.arrival_s,
            "scheduled_ts": MONOTONIC_S + r.first_scheduled_s,
            "first_token_ts": MONOTONIC_S + r.token_times_s[0],
            "last_token_ts": MONOTONIC_S + r.token_times_s[-1],
        }
        counts = {"input_toks": r.num_prompt_tokens, "output_toks": r.num_output_tokens}
        lines.append(json.dumps({"request_id": r.request_id, **counts, **times}) + "\n")
    (folder / "requests.jsonl").write_text("".join(lines), encoding="utf-8")


def write_meta(folder: Path, device: str, **scheduler: Any) -> None:
    """``meta.json``."""
    engine = {name: value for name, value in LIMITS.items() if name != "block_size"}
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": {**engine, "tensor_parallel_size": 1},
        "kv_cache": {"num_gpu_blocks": NUM_BLOCKS + 1, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": device},
        "resolved_config": {
            "scheduler_config": {
                "policy": "fcfs",
                "long_prefill_token_threshold": 0,
                "enable_chunked_prefill": True,
                "async_scheduling": True,
                **scheduler,
            }
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def write_tables(folder: Path, gpu: Gpu) -> None:
    """``dense.csv``, ``attention.csv`` and ``per_sequence.csv``: what kernels of these constants would take."""
    shape = find_model(MODEL)
    cost = CostModel(shape, gpu)
    h, inner = shape.hidden_size, shape.intermediate_size
    q_width, kv_width = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    sizes = {
        "qkv_proj": (q_width + 2 * kv_width, h),
        "o_proj": (h, q_width),
        "gate_up_proj": (2 * inner, h),
        "down_proj": (h, inner),
    }
    dense: list[tuple[Any, ...]] = [
        (name, m, 1e6 * cost.matmul_s(m, *size)) for name, size in sizes.items() for m in ROWS
    ]
    layer_us = {m: 1e6 * cost.elementwise_s(m) / shape.num_hidden_layers for m in ROWS}
    for name, share in (("layernorm", 0.25), ("rotary_emb", 0.25), ("act_fn", 0.25)):  # two norms, one of each other
        dense += [(name, m, share * layer_us[m]) for m in ROWS]
    _write(folder / "dense.csv", ("layer", "tokens", "time_us"), dense)
    heads = [("lm_head", n, 1e6 * cost.matmul_s(n, shape.vocab_size, h)) for n in ROWS]
    samplers = [("sampler", n, 1e6 * cost.sampling_s(n)) for n in ROWS]
    _write(folder / "per_sequence.csv", ("layer", "sequences", "time_us"), [*heads, *samplers])
    batches = [(0, 0, n, c) for n in (1, 4, 8, 12) for c in (16, 64, 128, 256, 512)]
    batches += [(q, c, 0, 0) for q in (16, 64, 128, 256) for c in (0, 64, 256)]
    batches += [(q, c, n, k) for q in (16, 64, 256) for c in (0, 128) for n in (2, 8) for k in (64, 384)]
    attention = []
    for chunk, prefix, decodes, context in batches:
        row = AttentionRow(1 if chunk else 0, chunk, prefix, decodes, context, 0.0)
        seconds = cost.attention_s(row.num_rows, row.num_tokens, row.load(gpu.chunk_attention.tile))
        attention.append((chunk, prefix, decodes, context, 1e6 * seconds))
    _write(folder / "attention.csv", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"), attention)


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
