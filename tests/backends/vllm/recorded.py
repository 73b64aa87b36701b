"""A server that records its traffic, played without vLLM."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchwright import Request
from batchwright.lab.readers.recording import SUFFIX
from batchwright_backends.vllm.attaching import attach
from batchwright_backends.vllm.parts import RecordSettings
from batchwright_backends.vllm.recording import Recording

SIZE = 4
MS = 1_000_000


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class OneByOne:
    """Runs one request at a time, its prompt in one step, then a token a step; in the form of vLLM's schedulers."""

    def __init__(self, clock: Clock) -> None:
        self.waiting: list[Any] = []
        self.clock = clock
        self.num_left: dict[str, int] = {}
        self.requests: dict[str, Any] = {}
        self.is_new = True
        self.was_shut = False
        self.raises = False

    def add_request(self, request: Any) -> None:
        if self.raises:
            raise ValueError("no room")
        self.waiting.append(request)
        self.requests[request.request_id] = request
        self.num_left[request.request_id] = request.length

    def schedule(self) -> Any:
        self.clock.now_ns += MS
        one = self.waiting[0]
        num = one.num_prompt_tokens if self.is_new else 1
        new = [SimpleNamespace(req_id=one.request_id, num_computed_tokens=0)] if self.is_new else []
        cached = SimpleNamespace(resumed_req_ids=set(), req_ids=[], num_computed_tokens=[])
        return SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens={one.request_id: num},
            preempted_req_ids=None,
        )

    def update_from_output(self, told: Any, output: Any) -> dict[int, Any]:
        one = self.waiting[0]
        self.is_new = False
        self.num_left[one.request_id] -= 1
        over = not self.num_left[one.request_id]
        if over:
            del self.waiting[0]
            self.is_new = True
        told_of = SimpleNamespace(
            request_id=one.request_id, new_token_ids=[7], finish_reason=one.reason if over else None
        )
        return {0: SimpleNamespace(outputs=[told_of])}

    def finish_requests(self, names: Any, status: Any) -> list[Any]:
        gone = [one for one in self.waiting if names is None or one.request_id in names]
        self.waiting = [one for one in self.waiting if one not in gone]
        return gone

    def get_request_counts(self) -> tuple[int, int]:
        return (1, len(self.waiting) - 1) if self.waiting else (0, 0)

    def get_kv_cache_usage(self) -> float:
        return 0.25

    def shutdown(self) -> None:
        self.was_shut = True


class Server:
    """A scheduler with a recording attached."""

    def __init__(self, folder: Path, said: dict[str, Request] | None = None, **settings: Any) -> None:
        self.clock = Clock()
        self.core = OneByOne(self.clock)
        record = RecordSettings(dir=str(folder), **settings)
        self.recording = Recording(record, {"policy": "p"}, 40, SIZE, lambda r: (said or {}).get(r.request_id))
        self.recording.start_ns = 0
        attach(self.core, self.recording, self.clock)

    def add(self, name: str, prompt: Sequence[int], length: int, reason: str = "length", max_tokens: int = 99) -> Any:
        request = SimpleNamespace(
            request_id=name,
            prompt_token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            sampling_params=SimpleNamespace(max_tokens=max_tokens),
            priority=0,
            output_token_ids=[],
            length=length,
            reason=reason,
        )
        self.core.add_request(request)
        return request

    def step(self) -> None:
        told = self.core.schedule()
        self.clock.now_ns += 9 * MS
        self.core.update_from_output(told, None)

    def finish(self) -> None:
        while self.core.waiting:
            self.step()
        self.core.shutdown()


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    for part in sorted(folder.glob(f"*{SUFFIX}")):
        with gzip.open(part, "rt") as file:
            yield from map(json.loads, file)
