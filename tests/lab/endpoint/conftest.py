"""A server to ask, for all tests of endpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from endpoint_server import Behaviour, OpenAIServer, serving


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[OpenAIServer]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared_server: OpenAIServer) -> OpenAIServer:
    """One server for all, that behaves."""
    shared_server.behaviour = Behaviour()
    shared_server.bodies.clear()
    shared_server.num_closed = 0
    return shared_server
