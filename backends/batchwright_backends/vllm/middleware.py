"""Fills in whose a request is, in vLLM's server.

``vllm serve MODEL --middleware batchwright_backends.vllm.middleware.TrustedFields``
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from pydantic import ValidationError

from batchwright_backends.vllm.settings import HostSettings, read_settings
from batchwright_backends.vllm.stamps import Stamps
from batchwright_backends.vllm.trusted import PREFIX, STAMP, Said, TrustedSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
"""Where bodies have ``vllm_xargs``. A request that comes by another way says nothing for policies."""
_PRIORITY = b"x-vllm-priority"
_KEYS = (b"authorization", b"x-api-key")


class _TwiceError(Exception):
    """A trusted header that comes twice."""


class TrustedFields:
    """ASGI middleware: takes fields for policies out of bodies, and puts in what configuration and headers say.

    Args:
        app: what goes on with the request.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._settings: HostSettings | None = None
        self._stamps: Stamps | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or another event of the server."""
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] != "POST" or path.rstrip("/") not in PATHS:
            await self._app(scope, receive, send)
            return
        settings = self._read(scope)
        if settings.trusted is None:
            await self._app(scope, receive, send)
            return
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        try:
            said = self._said(settings.trusted, headers)
        except (ValidationError, UnicodeDecodeError, _TwiceError) as error:
            await _refuse(send, error)
            return
        body = await _whole(receive)
        if body is None:  # the client has left
            return
        body = self._fill(body, said, free=settings.trust_requests)
        if said.priority is not None or not settings.trust_requests:
            headers = [pair for pair in headers if pair[0] != _PRIORITY]
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._app({**scope, "headers": headers}, _replay(body, receive), send)

    def _read(self, scope: Scope) -> HostSettings:
        if self._settings is None:
            self._settings, _ = read_settings(scope["app"].state.vllm_config.additional_config)
            self._stamps = self._settings.stamps
        return self._settings

    @staticmethod
    def _said(trusted: TrustedSettings, pairs: Sequence[tuple[bytes, bytes]]) -> Said:
        believed = {header.encode("latin-1") for header in trusted.headers.values()}
        headers: dict[str, str] = {}
        for name, value in pairs:
            if name in believed or name in _KEYS:  # any other may hold what it likes
                said_twice = name in believed and name.decode("latin-1") in headers
                if said_twice:  # a gateway that adds its own to a user's, say
                    raise _TwiceError(
                        f"{name.decode('latin-1')} comes twice; the gateway must take out what users send"
                    )
                headers[name.decode("latin-1")] = value.decode()
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        by_key = trusted.api_keys.get(f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") if key else None
        said: dict[str, Any] = by_key.model_dump(exclude_none=True) if by_key is not None else {}
        said |= {name: headers[header] for name, header in trusted.headers.items() if header in headers}
        by_client = trusted.clients.get(str(said.get("client_id")))
        if by_client is not None:
            said = {**by_client.model_dump(exclude_none=True), **said}
        return Said.model_validate(said)

    def _fill(self, body: bytes, said: Said, *, free: bool) -> bytes:
        try:
            data = json.loads(body)
        except ValueError:
            return body  # vLLM says what is wrong with it
        if not isinstance(data, dict) or not isinstance(data.get("vllm_xargs") or {}, dict):
            return body
        given: dict[str, Any] = data.get("vllm_xargs") or {}
        fields = {f"{PREFIX}{name}": value for name, value in said.model_dump(exclude_none=True).items()}
        kept = {name: value for name, value in given.items() if name != STAMP and (free or not name.startswith(PREFIX))}
        filled = {**kept, **fields}
        if not free:
            data.pop("priority", None)
        stamped = {name.removeprefix(PREFIX): v for name, v in filled.items() if name.startswith(PREFIX)}
        if stamped and not free and self._stamps is not None:
            filled[STAMP] = self._stamps.make(stamped)
        if said.priority is not None:
            data["priority"] = said.priority
        if filled or given:
            data["vllm_xargs"] = filled
        return json.dumps(data).encode()


async def _whole(receive: Receive) -> bytes | None:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()  # that the client leaves, say
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, error: Exception) -> None:
    said = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("headers",), "msg": str(error)}
    text = f"a trusted header cannot be: {'.'.join(map(str, said['loc']))}: {said['msg']}"
    body = json.dumps({"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
