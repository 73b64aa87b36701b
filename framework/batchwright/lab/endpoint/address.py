"""Where an endpoint is, and which of its models is meant: ``http://host:8000/v1#model``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from batchwright.errors import ConfigError

SCHEMES = ("http://", "https://")
FORM = "http://HOST:PORT/v1#MODEL"
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PATHS = ("/chat/completions", "/completions", "/models")


def is_endpoint(backend: str) -> bool:
    """Whether a backend's name is the address of a running server."""
    return backend.lower().startswith(SCHEMES)


@dataclass(frozen=True, slots=True)
class Address:
    """An OpenAI-compatible server.

    Attributes:
        url: what ``/models`` and ``/completions`` stand below, without a slash at its end.
        model: one of its models; None: its only one.
    """

    url: str
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``http://HOST:PORT/v1#MODEL``; without a path it is ``/v1``, and without a model the server's only one.

        Raises:
            ConfigError: it is no such address.
        """
        address, _, model = text.strip().partition("#")
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"endpoint {text}: {error}; write it as {FORM}") from None
        if not is_endpoint(address) or not host:
            raise ConfigError(f"endpoint {text}: there is no host in it; write it as {FORM}")
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                f"endpoint {parts.scheme}://...@{host}: its address would be in every report; give a key by "
                "backend_options.api_key_env or --header"
            )
        if parts.query:
            raise ConfigError(f"endpoint {text}: an address has no '?'; write it as {FORM}")
        path = parts.path.rstrip("/")
        for ending in _PATHS:
            path = path.removesuffix(ending)
        shown = f"[{host}]" if ":" in host else host
        where = f"{shown}:{port}" if port is not None else shown
        return cls(f"{parts.scheme}://{where}{path or '/v1'}", model or None)

    @property
    def host(self) -> str:
        """Its host, without the port."""
        return urlsplit(self.url).hostname or ""

    @property
    def root(self) -> str:
        """Where what is not of the API stands, such as ``/metrics``."""
        return self.url.removesuffix("/v1")

    @property
    def label(self) -> str:
        """Host and port, as the name of an arm."""
        return urlsplit(self.url).netloc

    def __str__(self) -> str:
        return f"{self.url}#{self.model}" if self.model else self.url
