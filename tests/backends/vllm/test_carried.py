"""What the host carries of a configuration of vLLM's; vLLM is not needed for it."""

from __future__ import annotations

import pytest

from backends.vllm.test_doctor import config_of
from batchwright_backends.vllm import doctor
from batchwright_backends.vllm.doctor import examine
from batchwright_backends.vllm.honoured import CLASSES
from batchwright_backends.vllm.surfaces import HOST


@pytest.mark.parametrize("is_async", [False, True])
def test_vllm_may_schedule_asynchronously(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does by default."""
    monkeypatch.setattr(doctor, "missing", list)
    monkeypatch.setattr(doctor, "vllm_version", lambda: "0.32.0")
    named = {"scheduler_config__scheduler_cls": CLASSES[HOST], "scheduler_config__async_scheduling": is_async}
    found = examine(config_of("vtc", **named))
    assert found.adapters[HOST].carries and not found.adapters[HOST].refused and found.fine
