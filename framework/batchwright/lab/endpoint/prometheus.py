"""What vLLM counts itself, read at its ``/metrics`` before and after a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from batchwright.lab.endpoint.client import Client, LostError

_LINE = re.compile(r"(?P<name>vllm:\w+)(?:\{[^}]*\})?\s+(?P<value>\S+)")
_PREEMPTIONS = "vllm:num_preemptions_total"
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
_QUEUE_S, _QUEUED = "vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count"
_WAITING, _RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"


async def read_counters(client: Client, url: str) -> Mapping[str, float]:
    """vLLM's own counters by name, of all its engines together; empty where there are none."""
    with suppress(LostError):
        reply = await client.get(url)
        if reply.status == 200:
            return parse_counters(reply.text)
    return {}


def parse_counters(text: str) -> Mapping[str, float]:
    """Samples of vLLM's series in Prometheus' text format, summed over their labels."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            with suppress(ValueError):
                found[match["name"]] += float(match["value"])  # type: ignore[assignment]
    return found


def others_there(before: Mapping[str, float]) -> bool:
    """Whether the server works for somebody else when the run is to begin."""
    return before.get(_RUNNING, 0) + before.get(_WAITING, 0) > 0


def describe(before: Mapping[str, float], after: Mapping[str, float], url: str) -> str | None:
    """What the server counted between two readings, in a sentence; None where it counts nothing."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    parts: list[str] = []
    if _PREEMPTIONS in after:
        parts.append(f"{grown[_PREEMPTIONS]:.0f} preemptions")
    if grown.get(_QUERIES):
        share = grown.get(_HITS, 0.0) / grown[_QUERIES]
        parts.append(f"prefix-cache hits for {share:.1%} of {grown[_QUERIES]:,.0f} prompt tokens")
    if grown.get(_QUEUED):
        parts.append(f"{grown.get(_QUEUE_S, 0.0) / grown[_QUEUED] * 1e3:.1f} ms in its queue on average")
    return f"its own counters ({url}): {', '.join(parts)}" if parts else None
