"""HTTP as an endpoint needs it, by aiohttp: a streamed chunk costs it 40 µs of a core, where httpx takes over 100."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from batchwright.errors import BackendError, ConfigError
from batchwright.lab.endpoint.address import LOCAL, Address
from batchwright.lab.endpoint.options import EndpointOptions

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0
"""Idle connections are closed before the server does so (uvicorn: after 5 s): a request would be sent into the void."""

_LONGEST = 400
"""Characters of a server's complaint that are kept."""


class LostError(Exception):
    """The connection, not the answer, went wrong; its message says how."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is there as a whole.

    Attributes:
        status: HTTP status.
        text: its body.
    """

    status: int
    text: str

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        with suppress(ValueError):
            return json.loads(self.text)
        return None

    def words(self) -> str:
        """What the server says of an error, shortened."""
        return f"HTTP {self.status}: {said(self.json(), self.text)}"


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is coming.

    Attributes:
        status: HTTP status.
        content_type: without parameters.
    """

    status: int
    content_type: str
    _response: aiohttp.ClientResponse

    async def read(self) -> Reply:
        """All of it."""
        with _lost():
            return Reply(self.status, (await self._response.read()).decode(errors="replace"))

    async def chunks(self) -> AsyncIterator[bytes]:
        """What has arrived, each time something has."""
        with _lost():
            async for data in self._response.content.iter_any():
                yield data


class Client:
    """Connections to one server. Use it with ``async with``.

    Args:
        address: of the server.
        options: of the endpoint.

    Raises:
        ConfigError: aiohttp is not installed, or a header cannot be sent.
    """

    def __init__(self, address: Address, options: EndpointOptions) -> None:
        check_installed()
        self._address = address
        self._options = options
        self._headers = options.sent_headers()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S, self._options.timeout_s), sock_read=self._options.timeout_s
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            headers=self._headers,
            timeout=timeout,
            trust_env=self._address.host not in LOCAL,  # no proxy stands between a machine and itself
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str, timeout_s: float = CONNECT_S) -> Reply:
        """Fetch something small.

        Raises:
            LostError: no answer came.
        """
        with _lost():
            async with asyncio.timeout(timeout_s), self._opened.get(url) as response:
                return Reply(response.status, (await response.read()).decode(errors="replace"))

    @asynccontextmanager
    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Stream]:
        """Send a request; entered when the answer's head is there. Leaving before its end closes the connection.

        Raises:
            LostError: no answer came.
        """
        sent = {"Content-Type": "application/json", **headers}
        with _lost():
            response = await self._opened.post(f"{self._address.url}{path}", data=body, headers=sent)
        try:
            yield Stream(response.status, response.content_type, response)
        finally:
            response.release()

    @property
    def url(self) -> str:
        """Where the API begins."""
        return self._address.url

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "enter the client first"
        return self._session


class _lost:  # noqa: N801 - it is used as a function
    """Makes a ``LostError`` of whatever goes wrong with a connection."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import aiohttp

        if isinstance(error, TimeoutError):
            raise LostError(f"timeout: {_message(error)}" if _message(error) else "timeout") from error
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise LostError(_message(error) or type(error).__name__) from error


def _message(error: BaseException) -> str:
    return " ".join(str(error).split())[:_LONGEST]


def said(value: Any, text: str = "") -> str:
    """What an error object of the OpenAI format, or of FastAPI, says; else the text, shortened."""
    found = value
    for key in ("error", "message", "detail", "msg"):
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, Mapping) and key in found:
            found = found[key]
    words = found if isinstance(found, str) and found else text or json.dumps(value)
    return " ".join(words.split())[:_LONGEST]


def check_installed() -> None:
    """Whether endpoints can be reached from here.

    Raises:
        ConfigError: aiohttp is not installed.
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise ConfigError(
            "an endpoint as an arm needs aiohttp, which is not installed: pip install 'batchwright[endpoint]'"
        ) from None


def no_server(address: Address, url: str, why: str) -> BackendError:
    """There is nobody at that address; what was tried, and how to start one."""
    port = address.label.rpartition(":")[2] if ":" in address.label else "8000"
    return BackendError(
        f"no server answers at {address.url}: GET {url}: {why}; start one (as in: vllm serve "
        f"{address.model or 'MODEL'} --port {port}) and wait until it is ready, or correct the address"
    )
