"""What can be said of vLLM as a backend, under ``backend_options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchwright.config import EngineConfig, explain
from batchwright.errors import ConfigError

ELSEWHERE = {
    "model": "the backend's name, vllm:MODEL",
    "scheduler_cls": "backend_options.adapter",
    "additional_config": "the settings of the arm",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "block_size": "block_size",
    "num_gpu_blocks_override": "num_blocks",
    "enable_prefix_caching": "prefix_cache.enabled",
    "seed": "seed",
    "dtype": "backend_options.dtype",
    "async_scheduling": "backend_options.async_scheduling",
    "tensor_parallel_size": "backend_options.tensor_parallel_size",
}
"""Arguments of vLLM's engine that are said elsewhere, and where."""


class VllmOptions(BaseModel):
    """Options of vLLM as a backend.

    Attributes:
        adapter: how the policy gets into vLLM: `host`, Batchwright's scheduler in the place of vLLM's, or `guest`, in
            vLLM's own scheduler. Policy `observe` is vLLM's own scheduler either way.
        dtype: of weights and activations; None: the model's own.
        async_scheduling: whether vLLM schedules a step while the one before it runs; in the lab `host` does not.
        tensor_parallel_size: devices, or processes on CPU, over which the model is split.
        kv_cache_gib: GiB of KV cache on CPU; None: what vLLM takes. `num_blocks` says it in blocks, anywhere.
        engine_args: further arguments of vLLM's engine, by the names of its `EngineArgs`.
        start_timeout_s: seconds that vLLM may take to start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    adapter: Literal["host", "guest"] = "host"
    dtype: str | None = None
    async_scheduling: bool = False
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    engine_args: dict[str, Any] = Field(default={})
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Check options.

        Raises:
            ConfigError: one is unknown or out of its range, or is said elsewhere.
        """
        try:
            options = cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"backend_options of vllm: {explain(error, cls)}") from None
        for name in options.engine_args:
            if name in ELSEWHERE:
                raise ConfigError(f"backend_options.engine_args.{name}: say it with {ELSEWHERE[name]}")
        if options.async_scheduling and options.adapter == "host":
            raise ConfigError(
                "backend_options.async_scheduling: in the lab Batchwright's scheduler in vLLM's place schedules a step "
                "when the one before it has ended, so that its decisions replay; leave it out, or set "
                "backend_options.adapter=guest"
            )
        return options


def check_config(config: EngineConfig) -> VllmOptions:
    """The options of an arm.

    Raises:
        ConfigError: an option is wrong, or a setting says something that vLLM's engine does not do.
    """
    options = VllmOptions.parse(config.backend_options)
    if not config.backend.partition(":")[2]:
        raise ConfigError("no model is named; write vllm:MODEL with a folder, owner/name on the hub, or smollm2-135m")
    for name, way_on in (
        ("overlap", "set backend_options.async_scheduling with adapter=guest"),
        ("on_backend_error", "leave it out: vLLM ends with an error of a worker"),
    ):
        if name in config.model_fields_set and getattr(config, name) not in (False, "fail"):
            raise ConfigError(f"{name} says something of Batchwright's engine, and vLLM has its own: {way_on}")
    return options
