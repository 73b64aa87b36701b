"""What a guest is shown of requests, what it is not, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.guest_policies import Late
from backends.vllm.guests import guest
from backends.vllm.runs import check_answers, offer


@pytest.mark.parametrize(("prompt", "params"), [([5, 7], {"stop_token_ids": [-1]}), ([-3, 5], {}), ([2**31, 5], {})])
def test_what_cannot_be_shown_to_a_policy_is_served_all_the_same(prompt: list[int], params: dict[str, Any]) -> None:
    """vLLM has taken it already: an error would end its engine."""
    run = guest("vtc", 60, 4, 40)
    run.add("shown", range(3, 20), 4)
    run.add("not shown", prompt, 4, **params)
    run.finish()
    assert run.ends.keys() == {"shown", "not shown"} and len(run.told["not shown"]) <= 4
    assert run.core.num_fallbacks == {"fields": 2} and not run.core._shadow.strange


def test_what_a_request_cannot_say_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM has taken it before anybody looks, so it is served all the same, and nobody falls."""
    run = guest("vtc", 200, 4, 40, trust_requests=True)
    rows = [("r0", [3] * 20, 5, 0, True), ("r1", [4] * 20, 5, 0, True), ("r2", [5] * 20, 5, 0, True)]
    for row, said in zip(rows, ({"weight": -1}, {"wait": 3}, {"deadline_s": "soon"}), strict=True):
        name, prompt, most, _, _ = row
        extra = {f"batchwright_{key}": value for key, value in said.items()}
        run.add(name, prompt, most, ignore_eos=True, extra_args=extra)
    assert run.core.num_fallbacks == {"fields": 3}
    assert "what request 'r1' says for the policy is not heard" in caplog.text
    run.finish()
    check_answers(run, rows)


def test_prompts_that_are_embeddings_are_not_shown_to_the_policy() -> None:
    import torch
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    run = guest("vtc", 200, 4, 40)
    params = run.add("tokens", [3] * 20, 5, ignore_eos=True).sampling_params
    run.core.add_request(VllmRequest("embeddings", None, params, None, prompt_embeds=torch.zeros(9, 64)))
    assert list(run.core._shadow.strange) == ["embeddings"] and list(run.core._shadow.guests) == ["tokens"]
    run.core.finish_requests("embeddings", RequestStatus.FINISHED_ABORTED)
    assert not run.core._shadow.strange
    run.finish()
    check_answers(run, [("tokens", [3] * 20, 5, 0, True)])


def test_who_wants_every_step_is_told_of_it_whenever_he_came() -> None:
    """And the policy is asked no more often for it."""
    run = guest("vllm_v1", 200, 4, 400)
    offer(run, ("r0", [3] * 20, 30, 0, True))
    for _ in range(5):
        run.step()
    before, late = run.core.num_unasked, Late()
    assert before > 0
    run.core.decisions.register(late, "late")
    run.finish()
    assert run.core.num_unasked == before + 25 and late.steps == 25
