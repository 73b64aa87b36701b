"""How long a request really runs is hidden from policies."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.hookspecs import hookimpl
from batchwright.lab import Workload, WorkloadRow, run_arm
from batchwright.policy import Policy
from lab.machine import Machine, config


class Spy(Policy):
    """A policy that looks for the true length wherever the contract lets it look."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def look(self, request: Any) -> None:
        for thing in (request, request.sampling_params):
            values = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
            plain = {name: v for name, v in values.items() if v is None or isinstance(v, (int, float, str, tuple))}
            self.seen.append((plain, list(request.prompt_token_ids), list(request.output_token_ids)))

    @hookimpl
    def arrival(self, request: Any) -> bool:
        self.look(request)
        return True

    @hookimpl
    def step_started(self, step: Any) -> None:
        for request in (*step.waiting, *step.running):
            self.look(request)

    @hookimpl
    def request_admitted(self, step: Any, request: Any) -> None:
        self.look(request)


@pytest.mark.parametrize(("declared", "hidden"), [("model", True), (150, True), ("exact", False)])
def test_nothing_that_a_policy_can_read_depends_on_the_true_length(declared, hidden) -> None:
    """Until the shorter of two runs ends, both look the same to the policy; with ``exact`` they do not."""
    seen = []
    for num_output_tokens in (83, 97):
        spy = Spy()
        load = Workload("w", (WorkloadRow(0, 17, num_output_tokens),), "w")
        run = run_arm(config(), load, backend=Machine(), policy=spy, declared=declared)
        assert run.requests[0].num_output_tokens == num_output_tokens
        seen.append(spy.seen)
    short, long = seen
    assert len(short) > 83
    assert (long[: len(short)] == short) == hidden
