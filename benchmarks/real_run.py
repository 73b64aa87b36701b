"""A folder with a real vLLM run: its request log, its settings, and kernel times of its GPU.

``requests.jsonl``, the limits in ``meta.json`` and ``prefixes.json``: see ``batchwright_backends.sim.request_log``.
Read of ``meta.json`` are also ``model``, ``dataset_hash``, ``vllm_version``, ``hardware.device_name``,
``engine_kwargs.tensor_parallel_size`` and ``resolved_config.scheduler_config`` (``policy``,
``long_prefill_token_threshold``, ``enable_chunked_prefill``, ``async_scheduling``). ``dense.csv``, ``attention.csv``,
``per_sequence.csv``: see ``batchwright_backends.sim.kernel_tables``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import WorkloadError
from batchwright_backends.sim.request_log import RequestLog, read_request_log

LOG, META = "requests.jsonl", "meta.json"
TABLES = ("dense.csv", "attention.csv", "per_sequence.csv")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks", "prefix_cache")


@dataclass(frozen=True)
class RealRun:
    """One run of vLLM.

    Attributes:
        folder: where it was read from.
        log: its requests, and the limits it had.
        model: its name.
        device: name of the GPU, as its driver says it.
        vllm_version: what ran.
        tensor_parallel: GPUs that shared every layer.
        policy: of vLLM's scheduler, as ``vllm_v1`` takes it.
        async_scheduling: whether a step was scheduled while the one before it ran.
    """

    folder: Path
    log: RequestLog
    model: str
    device: str
    vllm_version: str
    tensor_parallel: int
    policy: dict[str, Any]
    async_scheduling: bool

    @property
    def has_tables(self) -> bool:
        """Whether kernel times of its GPU lie beside it."""
        return all((self.folder / name).is_file() for name in TABLES)

    def config(self, backend: str, options: Mapping[str, Any] | None = None) -> EngineConfig:
        """Settings of an engine that decides as vLLM did, on this backend with these options of it."""
        values = {**self.log.limits, "policy": self.policy, "backend": backend, "backend_options": dict(options or {})}
        return EngineConfig.parse(values, str(self.folder / META))

    def __str__(self) -> str:
        tp = f" x{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.model}, vLLM {self.vllm_version}, {self.device}{tp}, {len(self.log.requests)} requests"


def read_real_run(folder: Path) -> RealRun:
    """Read a folder.

    Raises:
        WorkloadError, ConfigError: a file or a field of it is missing or broken, or vLLM was set to do what ``vllm_v1``
            does not.
    """
    path, meta = folder / META, read_meta(folder)
    log = read_request_log(folder / LOG)
    missing = [name for name in _LIMITS if name not in log.limits]
    if missing:
        raise WorkloadError(f"{path} does not say {', '.join(missing)}, without which it cannot be replayed")
    try:
        scheduler = (meta.get("resolved_config") or {}).get("scheduler_config") or {}
        threshold = int(scheduler.get("long_prefill_token_threshold") or 0)
        run = RealRun(
            folder=folder,
            log=log,
            model=str(meta["model"]),
            device=str(meta["hardware"]["device_name"]),
            vllm_version=str(meta["vllm_version"]),
            tensor_parallel=int(meta["engine_kwargs"].get("tensor_parallel_size") or 1),
            policy={
                "use": "vllm_v1",
                "scheduling_policy": str(scheduler.get("policy", "fcfs")),
                **({"long_prefill_token_threshold": threshold} if threshold else {}),
            },
            async_scheduling=bool(scheduler.get("async_scheduling", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WorkloadError(f"{path}: {error!r}; the fields that are read stand in {Path(__file__).name}") from None
    if not scheduler.get("enable_chunked_prefill", True):
        raise WorkloadError(f"{path}: vLLM ran without chunked prefill, and vllm_v1 has it: it cannot be replayed")
    return run


def read_meta(folder: Path) -> dict[str, Any]:
    """Its ``meta.json``.

    Raises:
        WorkloadError: there is none, or it is no JSON object.
    """
    path = folder / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WorkloadError(f"cannot read {path}: {error}; a folder of a real run has {META} and {LOG}") from None
    if not isinstance(meta, dict):
        raise WorkloadError(f"{path} is no JSON object; a folder of a real run has {META} and {LOG}")
    return meta
