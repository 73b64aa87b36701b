"""newest, cheapest, lowest_priority, most_blocks: whom to evict, under anybody's admission."""

from __future__ import annotations

import pytest

from batchwright import Policy, PrefixCache, Request, Step, hookimpl
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.stall_free import StallFree
from batchwright_policies.victims import Cheapest, LowestPriority, MostBlocks, Newest
from batchwright_policies.vllm_v1 import VllmV1
from policies.defining import Make, defines
from policies.drive import Job, Outcome, run


class Roomy(Policy):
    """Blocks for all but the asker's next tokens, so that it alone needs one."""

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        return request.num_tokens if request.request_id == "asker" else request.num_tokens + 12


COMPUTED = {"asker": 16, "c32": 32, "c16": 16, "c240": 240}
"""Tokens that each has computed when the asker lacks a block."""


def p7(victim: Policy, **fields: dict[str, int]) -> Outcome:
    jobs = [
        Job(name, computed - 1, 6, fields=fields.get(name, {}), max_tokens=20) for name, computed in COMPUTED.items()
    ]
    policy = {"admission": PrefillFirst(), "reservation": Roomy(), "preemption": victim}
    return run(policy, jobs, P=1 + 3 + 2 + 16, bs=16, T=512, S=4, prefix_cache=PrefixCache(enabled=False))


def victims(outcome: Outcome) -> list[str]:
    return [name for _, name in outcome.evictions]


def tax(outcome: Outcome) -> float:
    """Recomputed tokens of all prompt tokens."""
    return outcome.num_recomputed / sum(r.num_prompt_tokens for r in outcome.requests.values())


@defines(Cheapest)
def test_p7_cheapest_wastes_16_tokens_and_newest_240(make: Make) -> None:
    outcome = p7(make())
    assert victims(outcome) == ["c16"] and outcome.num_recomputed == 16
    assert tax(outcome) == 16 / 300
    newest = p7(Newest())
    assert victims(newest) == ["c240"] and newest.num_recomputed == 240
    assert tax(newest) == 240 / 300


@defines(Newest, instead=Cheapest)  # FIFO's own choice is this one
def test_p7_newest(make: Make) -> None:
    assert victims(p7(make())) == ["c240"]


@defines(LowestPriority)
def test_p7_lowest_priority(make: Make) -> None:
    fields = {"c32": {"priority": 7}, "c16": {"priority": 5}, "c240": {"priority": 5}}
    outcome = p7(make(), **fields)
    assert victims(outcome) == ["c32"] and outcome.num_recomputed == 32
    assert victims(p7(make(), **(fields | {"c240": {"priority": 7}}))) == ["c240"]  # of equals the latest
    assert victims(p7(make(), asker={"priority": 9})) == ["asker"]


@defines(MostBlocks)
def test_most_blocks(make: Make) -> None:
    # The largest comes first, so that it is not the newest as well.
    jobs = [Job("large", 60, 20), Job("small", 10, 20), Job("last", 10, 20)]
    outcome = run({"admission": PrefillFirst(), "preemption": make()}, jobs, P=6, bs=16, T=512)
    assert victims(outcome)[0] == "large"


def test_a_victim_may_be_in_the_batch_already() -> None:
    jobs = [Job("low", 5, 9, fields={"priority": 9}), Job("high", 8, 9, 0.005, fields={"priority": 1})]
    policy = {"admission": VllmV1(), "preemption": LowestPriority()}
    outcome = run(policy, jobs, P=4, bs=4, prefix_cache=PrefixCache())
    assert victims(outcome)[0] == "low"
    index = outcome.evictions[0][0]
    assert outcome.batches[index] == [("high", 1)]


@pytest.mark.parametrize("victim", [Newest, Cheapest, LowestPriority, MostBlocks])
def test_nobody_is_evicted_for_a_newcomer_and_everybody_ends(victim: type[Policy]) -> None:
    jobs = [Job(f"j{k}", 9 + 5 * (k % 4), 14, 0.01 * k, fields={"priority": -k}) for k in range(14)]

    askers: list[bool] = []

    class Askers:
        @hookimpl
        def request_preempted(self, step: Step, victim: Request, request: Request) -> None:
            askers.append(request is victim or request in step.running)

    policy = {"admission": StallFree(), "preemption": victim()}
    outcome = run(policy, jobs, P=14, bs=4, residents=2, plugins=[Askers()])
    assert len(outcome.requests) == 14
    assert askers and all(askers)
