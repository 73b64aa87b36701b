"""The loop of one run: requests are offered as they arrive, and vLLM's engine takes steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from batchwright.backend import RealClock
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.drive import PROGRESS_S
from batchwright.lab.materialize import Offer
from batchwright.request import Request
from batchwright_backends.vllm.lab.ledger import RunLedger
from batchwright_backends.vllm.trusted import Said

Tell = Callable[[int], bool]
"""Told about ten times a second how many requests have ended; whether the run is to end."""


class Drive:
    """One run.

    Args:
        engine: vLLM's ``LLMEngine``, idle.
        ledger: attached to its scheduler.
        arrivals: who comes when; started.
        clock: of all times.
        tell: hears of it.
    """

    def __init__(self, engine: Any, ledger: RunLedger, arrivals: Arrivals, clock: RealClock, tell: Tell) -> None:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

        self._params = SamplingParams
        self._engine = engine
        self._ledger = ledger
        self._arrivals = arrivals
        self._clock = clock
        self._tell = tell
        self._leavers: dict[int, Offer] = {}
        self._told = 0.0

    def run(self, max_steps: int | None, until_ns: int | None) -> str | None:
        """To the end, or why it stopped before."""
        engine, clock, arrivals, ledger = self._engine, self._clock, self._arrivals, self._ledger
        while True:
            if self._is_to_end():
                return "interrupted"
            now = clock.now_ns()
            if until_ns is not None and now >= until_ns:
                return "max_seconds"
            self._hear()
            while (when := arrivals.next_ns) is not None and when <= now:
                self._add(arrivals.take())
            if self._leavers and self._let_go(now):
                continue
            if engine.has_unfinished_requests():
                if max_steps is not None and len(ledger.steps) >= max_steps:
                    return "max_steps"
                engine.step()
            elif ledger.over and arrivals.waits:
                continue
            elif when is None:
                return None
            else:
                until = min(when, now + round(PROGRESS_S * 1e9))  # somebody may want it to end meanwhile
                clock.wait_until_ns(until if until_ns is None else min(until, until_ns))

    def _is_to_end(self) -> bool:
        now = time.perf_counter()
        if now - self._told <= PROGRESS_S:
            return False
        self._told = now
        return self._tell(self._ledger.num_ended)

    def _hear(self) -> None:
        over, self._ledger.over = self._ledger.over, []
        for place, when in over:
            self._leavers.pop(place, None)
            if self._arrivals.waits:
                self._arrivals.ended(place, when)

    def _add(self, offer: Offer) -> None:
        request = offer.request
        self._ledger.offer(offer)
        params = self._params(
            temperature=0.0,
            max_tokens=request.max_tokens,
            ignore_eos=request.sampling_params.ignore_eos,
            detokenize=False,
            extra_args=said(request),
        )
        prompt = {"type": "token", "prompt_token_ids": list(request.prompt_token_ids)}
        try:
            self._engine.add_request(request.request_id, prompt, params, priority=request.priority)
        except ValueError as error:  # what vLLM finds wrong with a request
            self._ledger.refuse(offer, str(error), self._clock.now_ns())
        else:
            if offer.row.gives_up:
                self._leavers[offer.place] = offer

    def _let_go(self, now_ns: int) -> bool:
        """End the requests whose clients give up now; whether there was one."""
        leaving = [offer for offer in self._leavers.values() if self._gives_up(offer, now_ns)]
        for offer in leaving:
            del self._leavers[offer.place]
            name = self._ledger.name_of(offer.place)
            if name is not None:
                self._engine.abort_request([name], internal=True)
        return bool(leaving)

    def _gives_up(self, offer: Offer, now_ns: int) -> bool:
        row = offer.row
        if self._ledger.name_of(offer.place) is None:
            return True
        if row.abort_after_s is not None and now_ns >= offer.request.arrival_ns + round(row.abort_after_s * 1e9):
            return True
        return row.abort_after_tokens is not None and self._ledger.num_tokens(offer.place) >= row.abort_after_tokens


def said(request: Request) -> dict[str, Any]:
    """What policies are to know of a request, as vLLM's requests carry it."""
    values = {name: getattr(request, name, None) for name in Said.model_fields}
    values["slo_class"] = request.extra.get("slo_class")
    if request.deadline_s is not None:
        values["deadline_s"] = max(0.0, request.deadline_s - request.arrival_ns / 1e9)
    return {f"batchwright_{name}": value for name, value in values.items() if value not in (None, "")}
