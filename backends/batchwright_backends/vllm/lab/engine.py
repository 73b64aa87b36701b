"""Starting vLLM's engine for one arm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import BackendError, BatchwrightError, ConfigError, did_you_mean
from batchwright.limits import Limits
from batchwright_backends.vllm.lab.advice import advice
from batchwright_backends.vllm.lab.options import VllmOptions
from batchwright_backends.vllm.seats import NULL_BLOCKS
from batchwright_backends.vllm.settings import SECTION
from batchwright_backends.vllm.traffic import is_observing

_NOT_IN_SECTION = (
    "backend",
    "backend_options",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_blocks",
    "on_backend_error",
    "overlap",
    "replicas",
    "router",
)


@dataclass(frozen=True)
class Started:
    """vLLM, ready for requests.

    Attributes:
        engine: its ``LLMEngine``.
        scheduler: in it.
        adapter: ``host``, ``guest`` or ``stock``.
        version: of vLLM.
        num_blocks, block_size: the KV pool, as requests may have it.
        max_model_len: tokens of one request at most.
        vocab_size: token ids are below it.
    """

    engine: Any
    scheduler: Any
    adapter: str
    version: str
    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int


def section_of(config: EngineConfig, options: VllmOptions) -> tuple[str, dict[str, Any]]:
    """Which adapter carries an arm, and what is said to it.

    Raises:
        ConfigError: settings do not go together.
    """
    said = config.model_dump(mode="json", exclude_unset=True, exclude=set(_NOT_IN_SECTION))
    said = {"policy": config.policy, "seed": config.seed, **said, "trust_requests": True}
    cache = {name: value for name, value in said.pop("prefix_cache", {}).items() if name != "enabled"}
    if cache:
        said["prefix_cache"] = cache
    policy = {"policy": said["policy"]}
    if is_observing(policy):
        others = sorted(set(said) - {"policy", "seed", "no_plugins", "trust_requests", "on_policy_error", "strict"})
        if others:
            raise ConfigError(f"policy observe is vLLM's own scheduler, which has no {', '.join(others)}: leave it out")
        return "stock", {**policy, "trust_requests": True}
    if options.adapter == "host":
        said.setdefault("on_policy_error", config.on_policy_error)
    return options.adapter, said


def start(config: EngineConfig, options: VllmOptions, limits: Limits) -> Started:
    """Start vLLM.

    Args:
        config: of the arm.
        options: of the backend.
        limits: as config and policy give them.

    Raises:
        ConfigError: an argument is wrong, or the configuration cannot be carried.
        BackendError: vLLM did not start; with its words, and what helps.
    """
    adapter, section = section_of(config, options)
    _set_environment(options)
    from vllm import EngineArgs, __version__  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

    known = {f.name for f in fields(EngineArgs)}
    for name in options.engine_args:
        if name not in known:
            raise ConfigError(
                f"backend_options.engine_args.{name} is no argument of vLLM {__version__}'s engine; "
                f"{did_you_mean(name, known)}"
            )
    given: dict[str, Any] = {
        "model": _model(config.backend.partition(":")[2]),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "block_size": config.block_size,
        "num_gpu_blocks_override": config.num_blocks,
        "enable_prefix_caching": config.prefix_cache.enabled,
        "seed": config.seed,
        "dtype": options.dtype,
        "tensor_parallel_size": options.tensor_parallel_size,
        "scheduler_cls": "batchwright_backends.vllm.host.HostScheduler"
        if adapter == "host"
        else "batchwright_backends.vllm.scheduler",
        "additional_config": {SECTION: section},
    }
    given = {name: value for name, value in given.items() if value is not None}
    if "use_tqdm_on_load" in known:  # progress is the lab's to show
        given["use_tqdm_on_load"] = False
    try:
        engine = LLMEngine.from_engine_args(
            EngineArgs(**{**given, **options.engine_args}, async_scheduling=options.async_scheduling)
        )
    except BatchwrightError:
        raise
    except Exception as error:
        raise BackendError(
            f"{config.backend}: vLLM {__version__} did not start: {type(error).__name__}: {error}; {advice(error)}"
        ) from error
    core = engine.engine_core.engine_core
    cache, model = engine.vllm_config.cache_config, engine.model_config
    return Started(
        engine=engine,
        scheduler=core.scheduler,
        adapter=adapter,
        version=__version__,
        num_blocks=cache.num_gpu_blocks - NULL_BLOCKS,
        block_size=cache.block_size,
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
    )


def _set_environment(options: VllmOptions) -> None:
    """The engine steps in this process; its workers may have others."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TQDM_DISABLE", "1")
    if options.kv_cache_gib is not None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = f"{options.kv_cache_gib:g}"


def _model(target: str) -> str:
    """What vLLM loads: a folder or a file, a name on the hub, or a well-known name."""
    path = Path(target).expanduser()
    if path.exists():
        return str(path)
    from batchwright_backends.torch.models import WELL_KNOWN, ensure_model

    return str(ensure_model(target)) if target in WELL_KNOWN else target


def describe(started: Started, options: VllmOptions) -> Mapping[str, Any]:
    """What a record says of it, beside the settings."""
    return {"vllm.version": started.version, "vllm.adapter": started.adapter, **_flat(options)}


def _flat(options: VllmOptions) -> dict[str, Any]:
    shown = options.model_dump(exclude={"adapter", "start_timeout_s"})
    return {f"vllm.{name}": value for name, value in shown.items() if value not in (None, {})}
