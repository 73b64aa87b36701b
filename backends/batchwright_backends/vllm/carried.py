"""What of vLLM the host scheduler carries. The rest is refused by name, with the way on, and nothing in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchwright.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.kv_cache_interface import KVCacheConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request  # pyright: ignore[reportMissingImports]

_WAY_ON = "leave --scheduler-cls out for vLLM's own scheduler"


def check_config(config: VllmConfig, kv_cache: KVCacheConfig, block_size: int, hash_block_size: int) -> None:
    """Whether this configuration is carried.

    Args:
        config: of the whole of vLLM.
        kv_cache: groups of KV blocks that the model needs.
        block_size: tokens of a block, as the scheduler counts them.
        hash_block_size: tokens for which a prefix is known.

    Raises:
        ConfigError: it is not; all that stands in the way is named.
    """
    parallel, model, scheduler = config.parallel_config, config.model_config, config.scheduler_config
    groups = [type(group.kv_cache_spec).__name__ for group in kv_cache.kv_cache_groups]
    wrong = {
        "pipeline parallelism: leave --pipeline-parallel-size at 1": parallel.pipeline_parallel_size > 1,
        "context parallelism: leave its sizes at 1": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        "data parallelism of a mixture of experts, whose ranks take steps together: leave --data-parallel-size at 1": (
            parallel.data_parallel_size > 1 and model.is_moe
        ),
        "speculative decoding: leave --speculative-config out": config.speculative_config is not None,
        "LoRA: leave --enable-lora out": config.lora_config is not None,
        "a KV connector: leave --kv-transfer-config out": config.kv_transfer_config is not None,
        "an encoder connector: leave --ec-transfer-config out": config.ec_transfer_config is not None,
        "KV cache events: leave --kv-events-config out": config.kv_events_config is not None
        and config.kv_events_config.enable_kv_cache_events,
        "pooling models": model.runner_type != "generate",
        "encoder-decoder models": model.is_encoder_decoder,
        "diffusion models": model.is_diffusion,
        "sampling masks": model.return_sampling_mask,
        f"KV caches other than one group of full attention (this model has {', '.join(groups) or 'none'})": groups
        != ["FullAttentionSpec"],
        "KV blocks that must be cleared before they are used": kv_cache.needs_kv_cache_zeroing,
        "a block size for hashes of its own: leave --prefix-match-unit out": hash_block_size != block_size,
        "chunked prefill switched off: leave --no-enable-chunked-prefill out": not scheduler.enable_chunked_prefill,
    }
    found = [what for what, is_so in wrong.items() if is_so]
    if found:
        raise ConfigError(f"Batchwright's scheduler does not carry: {'; '.join(found)}. Else {_WAY_ON}")


def check_request(request: Request, *, caching: bool) -> None:
    """Whether this request is carried.

    Args:
        request: vLLM's.
        caching: whether prefixes are shared.

    Raises:
        InvalidRequestError: it is not; what stands in the way is named.
    """
    params = request.sampling_params
    wrong = {
        "pooling": request.pooling_params is not None,
        "images, sound or video": bool(request.mm_features),
        "prompts as embeddings": request.prompt_embeds is not None or request.prompt_token_ids is None,
        "a LoRA adapter": request.lora_request is not None,
        "input that comes bit by bit": request.resumable,
        "a salt of the prefix cache (start vLLM with --no-enable-prefix-caching)": caching
        and request.cache_salt is not None,
        "log-probabilities of the prompt (start vLLM with --no-enable-prefix-caching)": caching
        and request.skip_reading_prefix_cache,
    }
    found = [what for what, is_so in wrong.items() if is_so]
    if found:
        raise InvalidRequestError(
            f"request {request.request_id!r} asks for {', '.join(found)}, which Batchwright's scheduler does not carry"
        )
    if params is None or params.max_tokens is None:
        raise InvalidRequestError(f"request {request.request_id!r} has no sampling parameters")
