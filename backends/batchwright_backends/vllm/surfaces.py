"""Every surface of vLLM that the adapters stand on, in one table. vLLM calls nearly all of them private.

What stands beside them (series, middleware, lab, doctor) is in :mod:`batchwright_backends.vllm.surfaces_beside`.
"""

from __future__ import annotations

from typing import NamedTuple

HOST, GUEST = "host", "guest"
ADAPTERS = (HOST, GUEST)
LAB, DOCTOR = "lab", "doctor"
USERS = (*ADAPTERS, LAB, DOCTOR)
"""All that stands on surfaces of vLLM."""

HOOKS = ("admission", "chunking", "reservation", "preemption", "arrival", "observers")
"""What of a policy an adapter may honour; the decision hooks, and all that only look."""


class Surface(NamedTuple):
    """A class or function of vLLM.

    Attributes:
        adapters: which of ours stand on it, out of ``USERS``.
        module, name: where it is imported from.
        members: attributes and methods of it that are used; with parameters, where some are given by their names or
            places: ``_preempt_request(request, timestamp)``.
        hooks: what of a policy needs it; nothing: everything does.
        before: other modules in which versions have it, the newest first.
    """

    adapters: tuple[str, ...]
    module: str
    name: str
    members: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


_SCHEDULING, _ENGINE = "vllm.v1.core.sched", "vllm.v1.engine"

SURFACES = (
    # What both are given.
    Surface(ADAPTERS, "vllm", "__version__"),
    Surface(
        ADAPTERS,
        "vllm.config",
        "VllmConfig",
        (
            *("additional_config", "scheduler_config", "model_config", "parallel_config", "cache_config"),
            *("speculative_config", "kv_transfer_config", "ec_transfer_config"),
        ),
    ),
    Surface(
        ADAPTERS,
        "vllm.config",
        "SchedulerConfig",
        (
            *("async_scheduling", "enable_chunked_prefill", "scheduler_cls"),
            *("max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
        ),
    ),
    Surface(ADAPTERS, "vllm.config", "ModelConfig", ("model", "max_model_len", "is_diffusion", "runner_type")),
    Surface(ADAPTERS, "vllm.config", "CacheConfig", ("num_gpu_blocks",)),
    Surface(ADAPTERS, "vllm.config", "ParallelConfig", ("data_parallel_size", "data_parallel_index")),
    Surface(ADAPTERS, f"{_SCHEDULING}.interface", "PauseState", ("UNPAUSED",)),
    Surface(
        ADAPTERS,
        "vllm.v1.request",
        "Request",
        (
            *("request_id", "prompt_token_ids", "sampling_params", "max_tokens", "priority", "session_id", "status"),
            *("num_prompt_tokens", "resumable", "num_preemptions"),
        ),
    ),
    Surface(ADAPTERS, "vllm.v1.request", "RequestStatus", ("get_finished_reason",)),
    Surface(
        ADAPTERS,
        "vllm",
        "SamplingParams",
        (
            *("max_tokens", "stop_token_ids", "eos_token_id", "extra_args", "repetition_detection", "min_tokens"),
            *("num_logprobs", "stop", "skip_special_tokens"),
        ),
    ),
    Surface(ADAPTERS, f"{_SCHEDULING}.utils", "check_sequence_repetition"),
    Surface(
        ADAPTERS,
        f"{_SCHEDULING}.interface",
        "SchedulerInterface",
        (
            *("add_request(request)", "finish_requests(request_ids, finished_status)", "schedule"),
            *("update_from_output(scheduler_output, model_runner_output)", "get_request_counts", "make_stats"),
            *("get_kv_cache_usage", "shutdown"),
        ),
    ),
    Surface(
        ADAPTERS,
        f"{_SCHEDULING}.output",
        "SchedulerOutput",
        (
            *("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens"),
            "preempted_req_ids",
        ),
    ),
    Surface(ADAPTERS, _ENGINE, "EngineCoreOutput", ("request_id", "new_token_ids", "finish_reason")),
    Surface(ADAPTERS, _ENGINE, "EngineCoreOutputs", ("outputs",)),
    # Adapter A, the guest.
    Surface(
        (GUEST,),
        f"{_SCHEDULING}.scheduler",
        "Scheduler",
        (
            *("schedule", "add_request(request)", "requests", "vllm_config", "kv_cache_config", "kv_cache_manager"),
            *("block_size", "hash_block_size", "max_model_len", "max_num_running_reqs", "max_num_active_reqs"),
            *("_pause_state", "_free_request(request)", "log_stats", "structured_output_manager"),
        ),
    ),
    Surface(
        (GUEST,),
        f"{_SCHEDULING}.scheduler",
        "Scheduler",
        (
            *("waiting", "running", "deferred_waiting", "_handle_blocked_waiting_request(request)"),
            "_is_blocked_waiting_status(status)",
        ),
        ("admission",),
    ),
    Surface((GUEST,), f"{_SCHEDULING}.scheduler", "Scheduler", ("max_num_scheduled_tokens",), ("chunking",)),
    Surface(
        (GUEST,), f"{_SCHEDULING}.scheduler", "Scheduler", ("_preempt_request(request, timestamp)",), ("preemption",)
    ),
    Surface((GUEST,), f"{_SCHEDULING}.async_scheduler", "AsyncScheduler"),
    Surface(
        (GUEST,),
        f"{_SCHEDULING}.request_queue",
        "RequestQueue",
        (
            *("add_request(request)", "pop_request", "peek_request", "prepend_request(request)"),
            *("prepend_requests(requests)", "remove_request(request)", "remove_requests(requests)"),
        ),
        ("admission",),
    ),
    Surface(
        (GUEST,),
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        (
            *("block_pool", "coordinator", "watermark_blocks", "get_computed_blocks(request)"),
            *("get_block_ids(request_id)", "get_blocks(request_id)", "record_prefix_cache_stats"),
        ),
        ("admission", "reservation", "preemption"),
    ),
    Surface((GUEST,), "vllm.v1.core.kv_cache_manager", "KVCacheBlocks", ("blocks",), ("admission", "preemption")),
    Surface(
        (GUEST,),
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator",
        ("single_type_managers",),
        ("preemption",),
    ),
    Surface(
        (GUEST,),
        "vllm.v1.core.single_type_kv_cache_manager",
        "SingleTypeKVCacheManager",
        ("req_to_blocks",),
        ("preemption",),
    ),
    Surface(
        (GUEST,),
        "vllm.v1.core.block_pool",
        "BlockPool",
        ("get_num_free_blocks", "num_gpu_blocks", "get_cached_block(block_hash, kv_cache_group_ids)"),
        ("admission", "preemption"),
    ),
    Surface(
        (GUEST,), "vllm.v1.core.kv_cache_utils", "KVCacheBlock", ("block_id", "ref_cnt"), ("admission", "preemption")
    ),
    Surface(
        (GUEST,),
        "vllm.v1.request",
        "Request",
        (
            *("num_tokens", "num_prompt_tokens", "num_computed_tokens", "num_output_placeholders", "output_token_ids"),
            *("is_prefill_chunk", "block_hashes", "num_stale_output_tokens", "drop_stale_output"),
        ),
    ),
    Surface((GUEST,), "vllm.config", "SchedulerConfig", ("policy", "long_prefill_token_threshold")),
    Surface((GUEST,), f"{_SCHEDULING}.output", "NewRequestData", ("req_id", "num_computed_tokens"), ("observers",)),
    Surface(
        (GUEST,),
        f"{_SCHEDULING}.output",
        "CachedRequestData",
        ("req_ids", "num_computed_tokens", "resumed_req_ids"),
        ("observers",),
    ),
    # Adapter B, the host.
    Surface(
        (HOST,),
        f"{_SCHEDULING}.interface",
        "SchedulerInterface",
        (
            *("schedule(throttle_prefills)", "get_num_unfinished_requests", "has_finished_requests"),
            *("reset_prefix_cache", "reset_encoder_cache", "pause_state", "set_pause_state(pause_state)"),
            *("get_grammar_bitmask(scheduler_output)", "update_draft_token_ids(draft_token_ids)"),
            "update_draft_token_ids_in_output(draft_token_ids, scheduler_output)",
        ),
    ),
    Surface((HOST,), f"{_SCHEDULING}.interface", "PauseState", ("PAUSED_NEW", "PAUSED_ALL")),
    Surface(
        (HOST,),
        f"{_SCHEDULING}.output",
        "SchedulerOutput",
        (
            *("scheduled_spec_decode_tokens", "scheduled_encoder_inputs", "finished_req_ids"),
            *("free_encoder_mm_hashes", "has_structured_output_requests", "pending_structured_output_tokens"),
        ),
    ),
    Surface((HOST,), f"{_SCHEDULING}.output", "GrammarOutput", ("structured_output_request_ids", "grammar_bitmask")),
    Surface(
        (HOST,),
        "vllm.v1.structured_output",
        "StructuredOutputManager",
        (
            "grammar_bitmask(requests, structured_output_request_ids, scheduled_spec_decode_tokens)",
            "accept_tokens(request, new_token_ids)",
        ),
    ),
    Surface((HOST,), "vllm.v1.structured_output.request", "StructuredOutputRequest", ("grammar", "_grammar")),
    Surface(
        (HOST,),
        f"{_SCHEDULING}.output",
        "NewRequestData",
        (
            *("req_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "block_ids"),
            *("num_computed_tokens", "lora_request", "prefill_token_ids"),
        ),
    ),
    Surface(
        (HOST,),
        f"{_SCHEDULING}.output",
        "CachedRequestData",
        (
            *("make_empty", "req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens", "resumed_req_ids"),
            "all_token_ids",
        ),
    ),
    Surface(
        (HOST,),
        "vllm.v1.request",
        "RequestStatus",
        ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ERROR", "FINISHED_REPETITION"),
    ),
    Surface((HOST,), _ENGINE, "EngineCoreEventType", ("QUEUED", "SCHEDULED", "PREEMPTED"), ("observers",)),
    Surface(
        (HOST,),
        _ENGINE,
        "EngineCoreOutput",
        (
            *("new_logprobs", "new_prompt_logprobs_tensors", "prompt_token_id_logprobs", "num_nans_in_logits"),
            *("stop_reason", "events", "prefill_stats", "trace_headers"),
        ),
    ),
    Surface((HOST,), _ENGINE, "EngineCoreOutputs", ("scheduler_stats", "finished_requests")),
    Surface(
        (HOST,),
        "vllm.v1.outputs",
        "ModelRunnerOutput",
        (
            *("req_id_to_index", "sampled_token_ids", "logprobs", "prompt_logprobs_dict", "num_nans_in_logits"),
            "prompt_token_id_logprobs_dict",
        ),
    ),
    Surface(
        (HOST,),
        "vllm.v1.request",
        "Request",
        (
            *("client_index", "stop_reason", "events", "take_events", "record_event", "get_finished_reason"),
            *("trace_headers", "prefill_stats", "take_prefill_stats", "mm_features", "prompt_embeds", "pooling_params"),
            *("structured_output_request", "lora_request", "cache_salt", "skip_reading_prefix_cache"),
            "append_output_token_ids(token_ids)",
        ),
    ),
    Surface(
        (HOST,),
        "vllm.v1.metrics.stats",
        "PrefixCacheStats",
        ("__init__(reset)", "record(num_tokens, num_hits, preempted)"),
        ("observers",),
    ),
    Surface(
        (HOST,),
        "vllm.v1.metrics.stats",
        "SchedulerStats",
        (
            *("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage"),
            "prefix_cache_stats",
        ),
        ("observers",),
    ),
    Surface(
        (HOST,),
        "vllm.v1.kv_cache_interface",
        "KVCacheConfig",
        ("num_blocks", "kv_cache_groups", "needs_kv_cache_zeroing"),
    ),
    Surface(
        (HOST,),
        "vllm.config",
        "VllmConfig",
        ("lora_config", "kv_events_config", "use_v2_model_runner"),
    ),
    Surface(
        (HOST,),
        "vllm.config",
        "ParallelConfig",
        ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"),
    ),
    Surface(
        (HOST,),
        "vllm.config",
        "ModelConfig",
        ("get_vocab_size", "is_encoder_decoder", "is_moe", "return_sampling_mask"),
    ),
    Surface((HOST,), "vllm.config", "CacheConfig", ("enable_prefix_caching",)),
    Surface((HOST,), "vllm.config", "SchedulerConfig", ("policy",)),
)
