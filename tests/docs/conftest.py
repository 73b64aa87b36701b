from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is first imported


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of SmolLM2-135M-Instruct; skips where it cannot be had."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("the extra 'torch' is not installed")
    from batchwright.errors import BackendError
    from batchwright_backends.torch.models import ensure_model

    try:
        return ensure_model("smollm2-135m")
    except BackendError as error:
        pytest.skip(str(error))
