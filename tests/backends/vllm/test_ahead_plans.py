"""What a policy plans as a guest while a step is under way is what vLLM's asynchronous scheduler then does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.ahead import Ahead
from backends.vllm.runs import BLOCK, check_answers, load, offer
from peers_vllm import guest


def play(policy: str, seats: int, rows: list[Any]) -> Ahead:
    """One request comes a step, and there are blocks for all."""
    run = Ahead(guest(policy, 200, BLOCK, seats, 48, is_async=True))
    for row in rows:
        offer(run, row)
        run.step()
    run.finish()
    check_answers(run, rows)
    return run


@pytest.mark.parametrize("policy", ["vllm_v1", "prefill_first", "stall_free:chunk_size=24", "vtc", "sjf", "hrrn"])
def test_whoever_waits_for_his_last_token_is_in_no_plan(policy: str) -> None:
    """vLLM does not run him, and what he would have taken of the budget goes to the prompt that is cut."""
    for seed in range(6):
        run = play(policy, 6, load(seed))
        assert set(run.core.num_fallbacks) <= {"inexpressible"}, run.core.num_fallbacks


def test_a_step_in_which_all_wait_for_their_last_tokens_is_no_idle_one() -> None:
    """Somebody waits for a seat: he gets it when the token is there, and the policy was not at fault."""
    run = play("srpt", 1, [("first", [3] * 20, 4, 0, True), ("next", [4] * 20, 4, 0, True)])
    assert run.core.num_fallbacks == {}
    assert {} in run.workers.steps  # there was one
