"""What a policy does in a scheduler of vLLM's, for series on vLLM's own ``/metrics``.

The scheduler runs in another process than the server. What is counted here travels with vLLM's own statistics
(:mod:`batchwright_backends.vllm.carrier`), and becomes series there (:mod:`batchwright_backends.vllm.series`).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from batchwright.hookspecs import hookimpl
from batchwright_backends.vllm.carrier import put
from batchwright_backends.vllm.top_clients import OTHER, TopClients

if TYPE_CHECKING:
    from batchwright.active_policy import ActivePolicy
    from batchwright.request import Request
    from batchwright.step import Step

_EVERY_S = 1.0
"""So often service is counted while nothing else happens."""
_AT_MOST_EVERY_S = 0.1
_LONGEST = 100
"""Characters of a name."""


class _Here:
    """One request that is in the scheduler."""

    __slots__ = ("arrived_s", "client", "is_first", "kind", "num_output", "num_prompt", "request")

    def __init__(self, request: Request, arrived_s: float) -> None:
        self.request: Any = request
        self.arrived_s = arrived_s
        kind = request.extra.get("slo_class")
        self.kind = "" if kind is None else str(kind)[:_LONGEST]
        self.client = None if request.client_id is None else request.client_id[:_LONGEST]
        self.num_output = self.num_prompt = 0  # counted so far
        self.is_first = True

    def count(self) -> tuple[int, int]:
        """Tokens of the prompt and of the output since this was asked last."""
        request = self.request
        output = getattr(request, "theirs", request).num_output_tokens  # a guest counts those under way too
        if not output:
            return 0, 0
        prompt = 0
        if not self.num_prompt:
            prompt = self.num_prompt = request.num_prompt_tokens - request.num_cached
        new = output - self.num_output
        self.num_output = output
        return prompt, new


class Meter:
    """An observer that counts, and puts what it counted into vLLM's statistics.

    Args:
        adapter: ``host`` or ``guest``.
        policy: gives the active policy.
        num_fallbacks: gives steps that were not made as the policy wanted, by cause.
        policy_ns: gives the time that steps took to build, in nanoseconds.
        most_clients: clients, and classes, that are named at once.
        clock_s: seconds.
        age_s: seconds since a request came, at its arrival in the policy's eyes.
    """

    def __init__(
        self,
        adapter: str,
        *,
        policy: Callable[[], ActivePolicy],
        num_fallbacks: Callable[[], Mapping[str, int]],
        policy_ns: Callable[[], int],
        most_clients: int,
        clock_s: Callable[[], float] = time.perf_counter,
        age_s: Callable[[Request], float] = lambda request: 0.0,
    ) -> None:
        self._adapter = adapter
        self._policy, self._num_fallbacks, self._policy_ns = policy, num_fallbacks, policy_ns
        self._clock_s, self._age_s = clock_s, age_s
        self._start_s = self._last_s = clock_s()
        self._is_closed = False
        self._here: dict[str, _Here] = {}
        self._begun: dict[str, _Here] = {}  # those of them that were admitted: nobody else was served anything
        self._awaited: dict[str, _Here] = {}  # admitted, and without a token
        self._clients, self._kinds = TopClients(most_clients), dict[str, None]()
        self._most_kinds = most_clients
        self._served: Counter[tuple[str, str]] = Counter()
        self._first_tokens: list[tuple[str, float]] = []
        self._admissions: list[tuple[str, float]] = []
        self._num_preemptions = 0
        self._told_policy: ActivePolicy | None = None
        self._told_fallbacks: dict[str, int] = {}
        self._told_ns = 0

    def close(self) -> None:
        """Nothing is told any more, so nothing is counted."""
        self._is_closed = True
        for one in (self._here, self._begun, self._awaited, self._served, self._first_tokens, self._admissions):
            one.clear()

    # What is observed ---------------------------------------------------------------------------------------

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits."""
        if self._is_closed:
            return
        one = self._here[request.request_id] = _Here(request, self._clock_s() - self._age_s(request))
        if one.kind and one.kind not in self._kinds:
            if len(self._kinds) < self._most_kinds:
                self._kinds[one.kind] = None
            else:
                one.kind = OTHER

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        """It got blocks: for the first time, or again."""
        one = self._here.get(request.request_id)
        if one is not None and one.is_first:
            one.is_first = False
            self._begun[request.request_id] = one
            self._awaited[request.request_id] = one
            self._admissions.append((one.kind, self._clock_s() - one.arrived_s))

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        """It lost them."""
        self._num_preemptions += 1

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It ended, for whatever reason."""
        one = self._here.pop(request.request_id, None)
        if one is not None:
            self._begun.pop(request.request_id, None)
            self._note_first_token(request.request_id)
            self._serve(one)

    # What is told -------------------------------------------------------------------------------------------

    def tell(self, stats: Any) -> None:
        """Put what was counted since the last time into statistics of a step, where it is time to.

        Args:
            stats: vLLM's ``SchedulerStats``, after the step's tokens were taken.
        """
        if self._awaited:
            for name in list(self._awaited):
                self._note_first_token(name)
        now = self._clock_s()
        since = now - self._last_s
        happened = self._admissions or self._first_tokens or self._num_preemptions or self._told_policy is None
        if not self._here or since >= (_AT_MOST_EVERY_S if happened else _EVERY_S):
            self._last_s = now
            said = self._take(now)
            if said:
                put(stats, json.dumps(said, separators=(",", ":")))

    def _note_first_token(self, name: str) -> None:
        one = self._awaited.get(name)
        if one is not None and getattr(one.request, "theirs", one.request).num_output_tokens:
            del self._awaited[name]
            self._first_tokens.append((one.kind, self._clock_s() - one.arrived_s))
        elif one is not None and name not in self._here:
            del self._awaited[name]

    def _serve(self, one: _Here) -> None:
        prompt, output = one.count()
        if prompt or output:
            client = self._clients.label(one.client, prompt + output)
            self._served[client, "prompt"] += prompt
            self._served[client, "output"] += output

    def _take(self, now: float) -> dict[str, Any]:
        for one in self._begun.values():
            self._serve(one)
        said: dict[str, Any] = {
            "ttft": self._first_tokens,
            "queue": self._admissions,
            "served": [(client, kind, num) for (client, kind), num in self._served.items() if num],
            "gone": self._clients.settle(now - self._start_s),
            "preemptions": self._num_preemptions,
            "fallbacks": self._new_fallbacks(),
            "policy_ns": self._policy_ns() - self._told_ns,
        }
        self._told_ns += said["policy_ns"]
        self._first_tokens, self._admissions, self._num_preemptions = [], [], 0
        self._served.clear()
        policy = self._policy()
        if policy is not self._told_policy:
            self._told_policy = policy
            said["policy"] = {
                "adapter": self._adapter,
                "policy": policy.name,
                "parameters": json.dumps(policy.describe(), default=str, sort_keys=True),
            }
        return {name: value for name, value in said.items() if value}

    def _new_fallbacks(self) -> dict[str, int]:
        told, now = self._told_fallbacks, dict(self._num_fallbacks())
        self._told_fallbacks = now
        return {cause: num - told.get(cause, 0) for cause, num in now.items() if num > told.get(cause, 0)}
