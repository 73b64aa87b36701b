"""The options of the torch backend, as ``backend_options`` in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchwright.errors import ConfigError, did_you_mean
from batchwright_backends.torch.passes.names import Pass


class TorchOptions(BaseModel):
    """Options of ``cpu:MODEL`` and ``cuda:MODEL``.

    Attributes:
        dtype: of weights, activations and KV cache; None: float32 on CPU, bfloat16 on CUDA, or float16 on a GPU that
            lacks bfloat16.
        load_format: ``auto`` loads the model's weights; ``dummy`` draws random ones from the engine's seed, for which
            config.json is enough: for benchmarks.
        attention: kernel of the paged attention; ``auto`` takes the first of flash_attn, varlen, triton, native, sdpa
            that can run the model here.
        cuda_graphs: whether steps of decodes are recorded as CUDA graphs at load and then replayed; ``auto`` does so
            where device, attention kernel and model allow it.
        kv_cache_gib: size of the KV cache in GiB. None: on CPU 1 GiB, or what ``memory_fraction`` of the free memory
            allows if that is less; on CUDA what is left of ``memory_fraction`` after a step at full size.
        memory_fraction: of the memory that is free on CPU, or of all memory on CUDA, what model and KV cache may use.
        num_threads: threads of torch on CPU, for the whole process; None leaves it as it is, or shares it between
            ranks.
        tensor_parallel_size: devices over which the model is split, a process for each; on CPU, processes alone.
        passes: what makes a model on CPU faster: packed_linears, fused_layers, fused_norms, each where it finds what it
            knows; None: all; an empty list: none. A model over several devices is left as it is.
        check_logits: whether a load compares the paged model's logits on a few tokens with those of the model's own
            eager attention, and fails when they differ.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    attention: Literal["auto", "flash_attn", "varlen", "triton", "native", "sdpa"] = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    kv_cache_gib: float | None = Field(default=None, gt=0)
    memory_fraction: float = Field(default=0.9, gt=0, le=1)
    num_threads: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    passes: tuple[Pass, ...] | None = None
    check_logits: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> TorchOptions:
        """Options as a user wrote them.

        Raises:
            ConfigError: an option that does not exist, or a value out of range; it names option, value and choices.
        """
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise ConfigError("; ".join(_sentence(cls, e) for e in error.errors())) from None


def _sentence(model: type[BaseModel], error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"backend_options.{name} is no option of the torch backend; {did_you_mean(name, model.model_fields)}"
    return f"backend_options.{name} is {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
