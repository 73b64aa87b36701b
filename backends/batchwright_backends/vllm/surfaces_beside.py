"""Surfaces of vLLM that stand beside the adapters: series, middleware, the lab, the doctor."""

from __future__ import annotations

from batchwright_backends.vllm.surfaces import ADAPTERS, DOCTOR, LAB, Surface

PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Where vLLM has had the parser of its server's arguments, the newest place first."""

_ENGINE = "vllm.v1.engine"

SURFACES_BESIDE = (
    # Series on /metrics, and the middleware.
    Surface(ADAPTERS, "vllm.plugins", "STAT_LOGGER_PLUGINS_GROUP", hooks=("observers",)),
    Surface(ADAPTERS, "vllm.v1.metrics.loggers", "load_stat_logger_plugin_factories", hooks=("observers",)),
    Surface(
        ADAPTERS,
        "vllm.v1.metrics.loggers",
        "AggregateStatLoggerBase",
        (
            *("__init__(vllm_config, engine_indexes)", "log_engine_initialized"),
            "record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)",
        ),
        ("observers",),
    ),
    Surface(ADAPTERS, "vllm.v1.metrics.stats", "SchedulerStats", ("waiting_lora_adapters",), ("observers",)),
    Surface(ADAPTERS, "vllm.config", "ModelConfig", ("served_model_name",), ("observers",)),
    Surface(ADAPTERS, PARSERS[0], "FrontendArgs", ("middleware",), before=PARSERS[1:]),
    Surface(
        ADAPTERS,
        "vllm.entrypoints.launchers.api_server.app_state",
        "init_app_state",
        ("vllm_config",),
        before=("vllm.entrypoints.openai.api_server",),
    ),
    # The lab.
    Surface(
        (LAB,),
        "vllm",
        "EngineArgs",
        (
            *("model", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"),
            *("num_gpu_blocks_override", "enable_prefix_caching", "seed", "dtype", "tensor_parallel_size"),
            *("scheduler_cls", "additional_config", "async_scheduling", "use_tqdm_on_load"),
        ),
    ),
    Surface(
        (LAB,),
        f"{_ENGINE}.llm_engine",
        "LLMEngine",
        (
            *("from_engine_args(engine_args)", "add_request(request_id, prompt, params, priority)", "step"),
            *("abort_request(request_ids, internal)", "has_unfinished_requests", "get_tokenizer"),
            *("engine_core", "vllm_config", "model_config"),
        ),
    ),
    Surface((LAB,), f"{_ENGINE}.core_client", "InprocClient", ("engine_core", "shutdown")),
    Surface((LAB,), f"{_ENGINE}.core", "EngineCore", ("scheduler",)),
    Surface((LAB,), "vllm.config", "VllmConfig", ("cache_config",)),
    Surface((LAB,), "vllm.config", "CacheConfig", ("num_gpu_blocks", "block_size")),
    Surface((LAB,), "vllm.config", "ModelConfig", ("max_model_len", "get_vocab_size", "skip_tokenizer_init")),
    Surface((LAB,), "vllm", "SamplingParams", ("max_tokens", "ignore_eos", "detokenize", "extra_args", "temperature")),
    # The doctor.
    Surface((DOCTOR,), PARSERS[0], "make_arg_parser", before=PARSERS[1:]),
    Surface((DOCTOR,), "vllm.utils.argparse_utils", "FlexibleArgumentParser", ("__init__(prog)", "parse_args")),
    Surface((DOCTOR,), "vllm.engine.arg_utils", "AsyncEngineArgs", ("from_cli_args(args)", "create_engine_config")),
)
