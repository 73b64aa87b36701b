"""A server that speaks OpenAI's format over HTTP: our own engine behind it, and knobs to misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from batchwright import AsyncEngine, Engine, EngineConfig, SamplingParams

ALL = frozenset({"ignore_eos", "stream_options", "continuous_usage_stats", "cache_salt"})
"""Extensions of the format."""

METRICS = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="tiny"}} {preemptions}
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:request_queue_time_seconds_sum{{engine="0"}} {queue_s}
vllm:request_queue_time_seconds_count{{engine="0"}} {requests}
vllm:num_requests_running{{engine="0"}} {running}
"""


@dataclass
class Behaviour:
    """How the server behaves.

    Attributes:
        models: names at ``/v1/models``.
        owned_by, version: what it says it is.
        max_model_len: as it says.
        key: the only key it takes.
        vocab_size: token ids from it on are refused.
        is_late: that is said within the stream, as vLLM does.
        takes_ids, has_completions: whether prompts may be token ids, and whether there is ``/v1/completions``.
        takes: extensions that it takes; others are an error.
        streams: whether it streams.
        buffers: keeps the stream back until it is whole.
        per_chunk: tokens in a chunk.
        has_usage: whether it counts tokens.
        split: bytes in a TCP segment, to cut events in two; 0: an event in one.
        status, words: what requests get, once ``healthy`` requests were answered.
        cut_after, stall_after, error_after: tokens after which the connection breaks, nothing more comes, or an error
            does.
        stop_after: tokens after which it ends an answer whatever was asked.
        reason: why it says that.
        die_after: tokens of the first request after the warm-up; then the whole server is gone.
        healthy: requests that are answered properly before anything goes wrong; the first is the warm-up.
        has_metrics: whether there is ``/metrics``.
        hits: prefix-cache hits that it counts for each request.
        running: requests that it says it runs for others.
    """

    models: tuple[str, ...] = ("tiny",)
    owned_by: str = "vllm"
    version: str | None = "0.32.0"
    max_model_len: int | None = 4096
    key: str | None = None
    vocab_size: int = 40_000
    is_late: bool = False
    takes_ids: bool = True
    has_completions: bool = True
    takes: frozenset[str] = ALL
    streams: bool = True
    buffers: bool = False
    per_chunk: int = 1
    has_usage: bool = True
    split: int = 0
    status: int = 200
    words: str = ""
    cut_after: int | None = None
    stall_after: int | None = None
    error_after: int | None = None
    stop_after: int | None = None
    reason: str = "stop"
    die_after: int | None = None
    healthy: int = 1
    has_metrics: bool = True
    hits: int = 0
    running: int = 0


@dataclass
class OpenAIServer:
    """The server while it runs.

    Attributes:
        behaviour: may be changed at any time.
        bodies: what was posted, in order, with its ``path`` and ``headers``.
        num_closed: streams that the client closed before their end.
    """

    behaviour: Behaviour
    config: EngineConfig
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_closed: int = 0
    port: int = 0
    _serving: asyncio.AbstractServer | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _engine: AsyncEngine | None = None
    _done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def num_blocks_held(self) -> int:
        """KV blocks that somebody holds."""
        assert self._engine is not None
        blocks = self._engine.engine.scheduler.blocks
        return self._engine.engine.capacity.num_blocks - blocks.num_free

    async def run(self, ready: threading.Event) -> None:
        async with AsyncEngine(Engine(self.config)) as self._engine:
            self._serving = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._serving.sockets[0].getsockname()[1]
            ready.set()
            await self._done.wait()
            await self._die()

    async def _die(self) -> None:
        if self._serving is not None:
            self._serving.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split()
                headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(writer, method, path, headers, body):
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> bool:
        """Whether the connection goes on."""
        b = self.behaviour
        if b.key is not None and headers.get("authorization") != f"Bearer {b.key}" and path != "/metrics":
            return await _reply(writer, 401, {"error": "Unauthorized"})
        if path == "/v1/models":
            cards = [{"id": m, "object": "model", "owned_by": b.owned_by} for m in b.models]
            for card in cards:
                if b.max_model_len is not None:
                    card["max_model_len"] = b.max_model_len  # type: ignore[assignment]
            return await _reply(writer, 200, {"object": "list", "data": cards})
        if path == "/version" and b.version is not None:
            return await _reply(writer, 200, {"version": b.version})
        if path == "/metrics" and b.has_metrics:
            num = len(self.bodies)
            text = METRICS.format(
                preemptions=num // 2,
                queries=10 * num,
                hits=b.hits * num,
                queue_s=0.25 * num,
                requests=num,
                running=b.running,
            )
            return await _reply(writer, 200, text)
        paths = ["/v1/chat/completions", *(["/v1/completions"] if b.has_completions else [])]
        if method != "POST" or path not in paths:
            return await _reply(writer, 404, {"detail": "Not Found"})
        return await self._complete(writer, path, headers, json.loads(body))

    async def _complete(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> bool:
        b = self.behaviour
        complaint = self._complaint(body)
        if complaint is not None:
            return await _reply(writer, 400, {"error": {"message": complaint, "code": 400}})
        ill = len(self.bodies) >= b.healthy
        self.bodies.append({**body, "path": path, "headers": headers})
        if ill and b.status != 200:
            return await _reply(writer, b.status, {"error": {"message": b.words, "type": "Error", "code": b.status}})
        if not b.streams:
            return await _reply(writer, 200, {"choices": [{"text": " a b", "finish_reason": "length"}]})
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        kept: list[bytes] = []
        try:
            async for event in self._events(path, body, ill):
                data = b"data: %s\n\n" % (event if isinstance(event, bytes) else json.dumps(event).encode())
                if b.buffers:
                    kept.append(data)
                else:
                    await _chunks(writer, data, b.split)
            if kept:
                await _chunks(writer, b"".join(kept), 0)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except _Broken:
            writer.transport.abort()
            return False
        except ConnectionError:
            self.num_closed += 1
            return False
        return True

    def _complaint(self, body: dict[str, Any]) -> str | None:
        b = self.behaviour
        if body["model"] not in b.models:
            return f"The model `{body['model']}` does not exist."
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            if not b.takes_ids:
                return "prompt: Input should be a valid string"
            if max(prompt) >= b.vocab_size and not b.is_late:
                return f"Token id {max(prompt)} is out of vocabulary"
            if b.max_model_len is not None and len(prompt) + body["max_tokens"] > b.max_model_len:
                return f"This model's maximum context length is {b.max_model_len} tokens"
        given = {name for name in ("ignore_eos", "stream_options", "cache_salt") if name in body}
        given |= {name for name in body.get("stream_options", {}) if name == "continuous_usage_stats"}
        unknown = sorted(given - b.takes)
        return f"Unrecognized request argument supplied: {unknown[0]}" if unknown else None

    async def _events(self, path: str, body: dict[str, Any], ill: bool) -> AsyncIterator[dict[str, Any] | bytes]:
        """The data of each event."""
        b = self.behaviour
        chat = path.endswith("chat/completions")
        prompt = body.get("prompt") or " ".join(m["content"] for m in body.get("messages", ()))
        ids = prompt if isinstance(prompt, list) else [7 + place for place, _ in enumerate(prompt.split())]
        asked = body.get("max_tokens", 12)
        running = b.has_usage and body.get("stream_options", {}).get("continuous_usage_stats", False)
        if max(ids) >= b.vocab_size:
            yield {"error": {"message": f"Token id {max(ids)} is out of vocabulary", "code": 400}}
            return
        if chat:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        said: list[str] = []
        num = 0
        assert self._engine is not None
        params = SamplingParams(max_tokens=asked, temperature=0.0, ignore_eos=True)
        async for output in self._engine.generate(ids, params):
            for token in output.new_token_ids:
                num += 1
                said.append(f" t{token}")
                last = num == asked or (ill and num == b.stop_after)
                if len(said) == b.per_chunk or last:
                    reason = None if not last else "length" if num == asked else b.reason
                    text, said = "".join(said), []
                    content: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
                    chunk: dict[str, Any] = {"choices": [{"index": 0, **content, "finish_reason": reason}]}
                    if running:
                        chunk["usage"] = _usage(ids, num)
                    yield chunk
                if last:
                    break
                await self._misbehave(num, ill)
                if ill and num == b.error_after:
                    yield {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
                    return
            else:
                continue
            break
        if b.has_usage and "stream_options" in body:
            yield {"choices": [], "usage": _usage(ids, num)}
        yield b"[DONE]"

    async def _misbehave(self, num: int, ill: bool) -> None:
        b = self.behaviour
        if not ill:
            return
        if num == b.cut_after:
            raise _Broken
        if num == b.die_after:
            await self._die()
            raise _Broken
        if num == b.stall_after:
            await asyncio.Event().wait()


class _Broken(Exception):
    """The connection breaks."""


def _usage(ids: list[int], num: int) -> dict[str, int]:
    return {"prompt_tokens": len(ids), "completion_tokens": num, "total_tokens": len(ids) + num}


async def _chunks(writer: asyncio.StreamWriter, data: bytes, split: int) -> None:
    """Bytes as HTTP chunks."""
    size = split or len(data)
    for place in range(0, len(data), size):
        part = data[place : place + size]
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        await writer.drain()
        if split:
            await asyncio.sleep(0)
    if writer.transport.is_closing():
        raise ConnectionResetError


async def _reply(writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    kind = "text/plain" if isinstance(value, str) else "application/json"
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


@contextmanager
def serving(behaviour: Behaviour | None = None, **config: Any) -> Iterator[OpenAIServer]:
    """A server on a port of its own, in a thread of its own."""
    values = {"policy": "vllm_v1", "backend": "sim:llama-3.1-8b@h100", **config}
    server = OpenAIServer(behaviour if behaviour is not None else Behaviour(), EngineConfig.parse(values))
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(ready),), daemon=True)
    thread.start()
    assert ready.wait(20), "the server did not start"
    try:
        yield server
    finally:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(server._done.set)
        thread.join(20)
        loop.run_until_complete(asyncio.sleep(0.01))  # whoever was just accepted is served, and knows its connection
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
