"""Whether vLLM's server takes what the scheduler tells it, and lets our middleware be; vLLM is not needed for it."""

from __future__ import annotations

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.vllm import carrier
from batchwright_backends.vllm.settings import read_settings
from batchwright_backends.vllm.trusted import SECRET


class Point:
    """As an entry point."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("env", "names", "taken"),
    [
        ({}, ["batchwright"], True),
        ({}, ["another"], False),
        ({"VLLM_PLUGINS": "mine,batchwright"}, ["batchwright"], True),
        ({"VLLM_PLUGINS": "mine"}, ["batchwright"], False),
        ({"VLLM_PLUGINS": ""}, ["batchwright"], False),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, ["batchwright"], False),
        ({"VLLM_USE_RUST_FRONTEND": "0"}, ["batchwright"], True),
    ],
)
def test_what_is_told_is_put_only_where_it_is_taken_out(
    env: dict[str, str], names: list[str], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(carrier, "entry_points", lambda group: [Point(n) for n in names if group == carrier.GROUP])
    assert carrier.is_taken() == taken


def test_who_is_to_be_believed_takes_a_server_with_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "nobody knows it, really")
    section = {"batchwright": {"trusted": {"headers": {"client_id": "X-Client"}}}}
    assert read_settings(section)[0].stamps is not None
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(ConfigError, match="server in Rust has no middleware"):
        read_settings(section)
    assert read_settings({"batchwright": {}})[0].stamps is None
