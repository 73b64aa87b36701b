"""The request log of a real vLLM run, and the same requests as a workload.

``requests.jsonl`` has an object a line: ``input_toks``, ``output_toks``, and ``queued_ts``, ``first_token_ts`` and
``last_token_ts`` in seconds of one clock. A ``meta.json`` beside it, where there is one, says under which limits vLLM
ran (``engine_kwargs``, ``kv_cache``), and a ``prefixes.json`` which prompts begin alike (see
:mod:`batchwright_backends.sim.shared_prefixes`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab import Workload, WorkloadRow
from batchwright_backends.sim.shared_prefixes import FILE, SharedPrefixes, read_shared_prefixes

_COUNTS = ("input_toks", "output_toks")
_TIMES = ("queued_ts", "first_token_ts", "last_token_ts")
EXPECTED = ", ".join((*_COUNTS, *_TIMES))


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as it really ran; times in seconds from the arrival of the first.

    Attributes:
        arrival_s: when the engine had it.
        first_token_s, last_token_s: when these tokens were there.
        num_prompt_tokens, num_output_tokens: its lengths.
        block_ids: of the whole blocks of its prompt, where it shares some with another.
    """

    arrival_s: float
    first_token_s: float
    last_token_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()

    @property
    def ttft_s(self) -> float:
        """Seconds to its first token."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None where there is one only."""
        more = self.num_output_tokens - 1
        return (self.last_token_s - self.first_token_s) / more if more else None

    @property
    def e2e_s(self) -> float:
        """Seconds to its last token."""
        return self.last_token_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class RequestLog:
    """A run.

    Attributes:
        requests: in order of arrival.
        limits: settings of an engine that its ``meta.json`` gives: ``max_num_seqs``, ``num_blocks`` and so on.
        source: the file.
        prefixes: what prompts share; None: nobody says.
    """

    requests: tuple[LoggedRequest, ...]
    limits: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    prefixes: SharedPrefixes | None = None

    @property
    def workload(self) -> Workload:
        """The same requests, to be offered to an engine."""
        size = self.prefixes.block_size if self.prefixes is not None else 0
        rows = tuple(
            WorkloadRow(
                round(r.arrival_s * 1e9),
                r.num_prompt_tokens,
                r.num_output_tokens,
                prefix_ids=r.block_ids,
                prefix_block_size=size if r.block_ids else 0,
            )
            for r in self.requests
        )
        return Workload(Path(self.source).name, rows, self.source)


def read_request_log(file: Path) -> RequestLog:
    """Read a log and the limits beside it.

    Raises:
        ConfigError: no such file, a line that is no request (file, line, what was expected), or what stands beside it
            cannot be read.
    """
    requests: list[LoggedRequest] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error}; expected a JSON object a line: {EXPECTED}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            requests.append(_request(line, f"{str(file)!r}, line {number}"))
    if not requests:
        raise ConfigError(f"{str(file)!r} holds no request; expected a JSON object a line: {EXPECTED}")
    first = min(r.arrival_s for r in requests)
    moved = [
        replace(
            r,
            arrival_s=r.arrival_s - first,
            first_token_s=r.first_token_s - first,
            last_token_s=r.last_token_s - first,
        )
        for r in requests
    ]
    moved.sort(key=lambda r: r.arrival_s)
    prefixes = None
    if (beside := file.parent / FILE).is_file():
        prefixes = read_shared_prefixes(beside)
        ids = prefixes.block_ids([r.num_prompt_tokens for r in moved])
        moved = [replace(r, block_ids=blocks) for r, blocks in zip(moved, ids, strict=True)]
    return RequestLog(tuple(moved), _limits(file.parent / "meta.json"), str(file), prefixes)


def _request(line: str, where: str) -> LoggedRequest:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON: {error}; expected an object with {EXPECTED}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is no JSON object; expected one with {EXPECTED}")
    for name in (*_COUNTS, *_TIMES):
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"{where}: {name} should be a number and is {value!r}; expected {EXPECTED}")
        if name in _COUNTS and (value < 1 or value != int(value)):
            raise ConfigError(f"{where}: {name} should be a whole number of at least 1 and is {value!r}")
    arrival, first, last = (float(values[name]) for name in _TIMES)
    if not arrival <= first <= last:
        raise ConfigError(
            f"{where}: expected queued_ts <= first_token_ts <= last_token_ts, got {arrival}, {first}, {last}"
        )
    return LoggedRequest(arrival, first, last, int(values["input_toks"]), int(values["output_toks"]))


def _limits(meta: Path) -> dict[str, Any]:
    """Settings that a ``meta.json`` gives; nothing where there is none."""
    if not meta.is_file():
        return {}
    try:
        values = json.loads(meta.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{str(meta)!r} cannot be read as JSON: {error}") from None
    engine, cache = (values.get(name) or {} for name in ("engine_kwargs", "kv_cache"))
    given = {
        "max_num_seqs": engine.get("max_num_seqs"),
        "max_num_batched_tokens": engine.get("max_num_batched_tokens"),
        "max_model_len": engine.get("max_model_len"),
        "block_size": cache.get("block_size"),
    }
    if isinstance(blocks := cache.get("num_gpu_blocks"), int):
        given["num_blocks"] = blocks - 1  # the first is vLLM's null block, which holds nobody's tokens
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if cache.get("enable_prefix_caching") is not None:
        limits["prefix_cache"] = {"enabled": bool(cache["enable_prefix_caching"])}
    return limits
