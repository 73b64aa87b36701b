"""Series of a policy on vLLM's own ``/metrics``. vLLM finds this by its entry point, in the process of the server.

Where no policy of this project runs nothing is told, and no series exists.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from typing import Any

from prometheus_client import Counter, Gauge, Histogram  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.loggers import AggregateStatLoggerBase  # pyright: ignore[reportMissingImports]

from batchwright_backends.vllm.carrier import take
from batchwright_backends.vllm.top_clients import OTHER

logger = logging.getLogger("vllm.batchwright")

PREFIX = "vllm:batchwright_"
"""Of each series: with vLLM's own, so that ``LLM.get_metrics()`` and dashboards find both."""

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_MOST = 1000
"""Clients that are named at most where processes share series, which then cannot end."""


class Series(AggregateStatLoggerBase):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """Takes what schedulers tell, of all engines of a server.

    Args:
        vllm_config: of the whole of vLLM.
        engine_indexes: of its engines.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self._model = str(vllm_config.model_config.served_model_name)
        self._made: _Made | None = None
        self._shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        self._clients: set[str] = set()
        self._failed = False
        self._policies: dict[int, dict[str, str]] = {}

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """What vLLM tells after each step."""
        if scheduler_stats is None:
            return
        for text in take(scheduler_stats):
            try:
                self._take(json.loads(text), engine_idx)
            except Exception:  # a server goes on without series
                if not self._failed:
                    self._failed = True
                    logger.exception("a policy's series are not what they should be; further faults are not logged")

    def log_engine_initialized(self) -> None:
        """Nothing is known yet."""

    def _take(self, said: dict[str, Any], engine: int) -> None:
        made = self._made = self._made or _Made()
        labels = {"model_name": self._model, "engine": str(engine)}
        for name, series in (("ttft", made.ttft), ("queue", made.queue)):
            for kind, seconds in said.get(name, ()):
                series.labels(**labels, **{"class": kind}).observe(seconds)
        for client, kind, num in said.get("served", ()):
            made.served.labels(**labels, client=self._name(client), kind=kind).inc(num)
        for client in () if self._shared else said.get("gone", ()):
            for kind in ("prompt", "output"):
                made.remove(made.served, {**labels, "client": client, "kind": kind})
        made.preemptions.labels(**labels).inc(said.get("preemptions", 0))
        for cause, num in said.get("fallbacks", {}).items():
            made.fallbacks.labels(**labels, cause=cause).inc(num)
        made.policy.labels(**labels).inc(said.get("policy_ns", 0) / 1e9)
        if "policy" in said:
            before = self._policies.get(engine)
            if before is not None:
                made.info.labels(**labels, **before).set(0)
            self._policies[engine] = said["policy"]
            made.info.labels(**labels, **said["policy"]).set(1)

    def _name(self, client: str) -> str:
        if not self._shared or client in self._clients:
            return client
        if len(self._clients) >= _MOST:
            return OTHER
        self._clients.add(client)
        return client


class _Made:
    """The series, made when there is something to tell: vLLM throws out those that exist before its own."""

    def __init__(self) -> None:
        engine = ["model_name", "engine"]

        def seconds(name: str, text: str) -> Any:
            return Histogram(PREFIX + name, text, [*engine, "class"], buckets=_SECONDS)

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(PREFIX + name, text, [*engine, *labels])

        self.ttft = seconds(
            "time_to_first_token_seconds", "From arrival at the scheduler to the first token, by class."
        )
        self.queue = seconds("queue_time_seconds", "From arrival at the scheduler to the first admission, by class.")
        self.served = counter(
            "service_tokens",
            "Prompt tokens computed (once, and not those found in the prefix cache) and output tokens, by client.",
            *("client", "kind"),
        )
        self.preemptions = counter("preemptions", "Residents that lost their blocks.")
        self.fallbacks = counter("fallbacks", "Steps that were not made as the policy wanted, by cause.", "cause")
        self.policy = counter("policy_seconds", "Time in which steps were built: the policy, and what asks it.")
        self.info = Gauge(
            PREFIX + "policy_info",
            "The active policy and its parameters: 1.",
            [*engine, "adapter", "policy", "parameters"],
            multiprocess_mode="mostrecent",
        )

    @staticmethod
    def remove(series: Any, labels: dict[str, str]) -> None:
        with suppress(KeyError):  # it never had any
            series.remove(*(labels[name] for name in series._labelnames))
