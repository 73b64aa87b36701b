"""vLLM is imported here, where it is installed: it warns of much that is not ours."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings

import pytest

if importlib.util.find_spec("vllm") is not None:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.v1.core.sched.scheduler  # noqa: F401  # pyright: ignore[reportMissingImports]


@pytest.fixture(autouse=True)
def _heard() -> None:
    """What is logged is heard: vLLM keeps it to itself once it has made a configuration."""
    logger = logging.getLogger("vllm")
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
