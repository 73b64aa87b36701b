"""What may be a policy or a plugin, and what is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from batchwright import ConfigError, PluginError, Policy, Request, Scheduler, Step, hookimpl
from faulty import PrefillFirst
from plugins.wrapping import Filters
from toolbox import make_engine, make_request, play


def test_a_policy_need_not_call_the_base_class() -> None:
    class Careless(PrefillFirst):
        def __init__(self) -> None:
            self.params = PrefillFirst.Params()
            self.budget_counts_decodes = False
            self._prompt_steps = 0

    class Bare(Policy):
        def __init__(self) -> None:
            self.state = 0

    for policy in (Careless(), Bare()):
        engine, tape = make_engine(policy)
        play(engine, [make_request("a", 4, 3)])
        assert tape.reasons == {"a": "length"}


def test_a_policy_may_be_a_dataclass() -> None:
    @dataclass
    class Sized(Policy):
        size: int = 3

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int:
            return min(self.size, request.num_pending, step.budget)

    engine, tape = make_engine(Sized())
    play(engine, [make_request("a", 6, 1)])
    assert [s.batch for s in tape.steps] == [[("a", 3)], [("a", 3)]]


@pytest.mark.parametrize("policy", [Policy, PrefillFirst, 5, 1.5, b"stall_free"])
def test_what_is_no_policy(policy: Any) -> None:
    with pytest.raises(ConfigError, match="policy"):
        Scheduler(policy, num_blocks=4, block_size=4)


@pytest.mark.parametrize("plugin", [Filters, Policy, "tracer", None, 5, object()])
def test_what_is_no_plugin(plugin: Any) -> None:
    with pytest.raises(PluginError, match="hook"):
        make_engine(plugins=[plugin])
