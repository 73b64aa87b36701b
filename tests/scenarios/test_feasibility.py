"""Scenarios F1 to F8: what can never fit is refused when it is submitted, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import (
    InfeasibleRequestError,
    InvalidRequestError,
    PluginError,
    Policy,
    Request,
    SamplingParams,
    Step,
    hookimpl,
)
from batchwright.plugins import load_plugins
from toolbox import CHUNKING, SHIPPED, expected_of, make_engine, make_request, play

shipped = pytest.mark.parametrize("policy", SHIPPED)


@shipped
def test_f1_a_request_that_can_never_fit_is_refused_with_its_numbers(policy: str) -> None:
    engine, tape = make_engine(policy, bs=4, P=2)
    with pytest.raises(InfeasibleRequestError) as caught:
        engine.add_request(make_request("big", 12, 4))
    message = str(caught.value)
    assert "need 4 KV blocks" in message and "the pool has 2" in message
    assert "lower max_tokens" in message and "raise num_blocks" in message
    small = make_request("small", 3, 2)
    play(engine, [small])
    assert tape.reasons == {"small": "length"}
    assert small.output_token_ids == expected_of(small)


@shipped
@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [
        (8, 4, False),
        (4, 5, True),
        (4, 6, False),
        (8, 1, True),
        (8, 2, False),
        (9, 1, False),
        (1, 8, True),
        (1, 9, False),
    ],
)
def test_f2_the_last_sampled_token_needs_no_block(policy: str, prompt: int, max_tokens: int, fits: bool) -> None:
    engine, tape = make_engine(policy, bs=4, P=2)
    request = make_request("a", prompt, max_tokens)
    if not fits:
        with pytest.raises(InfeasibleRequestError, match="need 3 KV blocks"):
            engine.add_request(request)
        assert not engine.has_unfinished()
        return
    play(engine, [request])
    assert tape.reasons == {"a": "length"}
    assert request.num_output_tokens == max_tokens


class WholePrompts(Policy):
    """Never cuts a prompt."""

    chunks = False

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield step.running
        yield list(step.waiting)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return request.num_pending if request.num_pending <= step.budget else 0


def test_f3_a_policy_that_never_chunks_is_refused_a_prompt_beyond_the_budget() -> None:
    engine, tape = make_engine(WholePrompts(), T=8)
    with pytest.raises(InfeasibleRequestError, match=r"never cuts a prompt.* 12 tokens.*max_num_batched_tokens is 8"):
        engine.add_request(make_request("a", 12, 1))
    # One that fits at first could be evicted and grow beyond the budget: 7 + 3 - 1 tokens to recompute.
    with pytest.raises(InfeasibleRequestError, match="9 tokens in one step"):
        engine.add_request(make_request("b", 7, 3))
    play(engine, [make_request("c", 7, 2), make_request("d", 8, 1)])
    assert tape.reasons == {"c": "length", "d": "length"}


def test_f3_such_a_policy_cannot_take_over_a_long_prompt_either() -> None:
    engine, _ = make_engine("prefill_first", T=8)
    engine.add_request(make_request("a", 12, 4))
    engine.step()
    with pytest.raises(PluginError, match=r"never cuts a prompt.*'a' can take 15 tokens.*is 8"):
        engine.swap_policy(WholePrompts())
    assert engine.policy_name == "prefill_first"
    play(engine, [])


@shipped
def test_f4_prompts_about_max_model_len(policy: str) -> None:
    engine, tape = make_engine(policy, max_model_len=16)
    for length in (16, 17):
        with pytest.raises(InfeasibleRequestError, match=f"prompt has {length} tokens and max_model_len is 16"):
            engine.add_request(make_request(f"p{length}", length, 4))
    request = make_request("p15", 15, 4)
    play(engine, [request])
    assert request.num_output_tokens == 1 and request.max_tokens == 1
    assert tape.reasons == {"p15": "length"}


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, True, "3", None])
def test_f5_max_tokens_out_of_range(max_tokens: Any) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens must be a whole number of at least 1"):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "prompt_token_ids is empty"),
        ([3, -1], r"prompt_token_ids must be ints in \[0, 2\^31\), and -1 is among them"),
        ([3, 2**31], r"prompt_token_ids must be ints in \[0, 2\^31\)"),
        ([3, 1.5], r"prompt_token_ids must be ints in \[0, 2\^31\)"),
        ([3, 1000], r"prompt_token_ids must be in \[0, 1000\), the model's vocabulary, and 1000 is among them"),
    ],
)
def test_f5_token_ids_out_of_range(tokens: list[Any], message: str) -> None:
    _refused_beside_a_running_one(lambda: make_request("bad", tokens, 4), message)


def test_f5_a_duplicate_request_id() -> None:
    _refused_beside_a_running_one(lambda: make_request("first", 9, 9), "request_id 'first' is in use")


def test_f5_a_request_added_twice() -> None:
    first = make_request("first", 6, 6)
    engine, tape = make_engine()
    engine.add_request(first)
    with pytest.raises(InvalidRequestError, match="'first' was added before"):
        engine.add_request(first)
    play(engine, [])
    with pytest.raises(InvalidRequestError, match="'first' was added before: make a new Request"):
        engine.add_request(first)
    assert tape.reasons == {"first": "length"}
    play(engine, [make_request("first", 6, 2)])  # a finished id is free again


def _refused_beside_a_running_one(make_bad: Any, message: str) -> None:
    def run(with_bad: bool) -> list[Any]:
        engine, tape = make_engine()
        first = make_request("first", 6, 6)
        engine.add_request(first)
        engine.step()
        if with_bad:
            with pytest.raises(InvalidRequestError, match=message):
                engine.add_request(make_bad())
        play(engine, {1: [make_request("second", 5, 3)]})
        assert first.output_token_ids == expected_of(first)
        return tape.steps

    assert run(with_bad=True) == run(with_bad=False)


@pytest.mark.parametrize("policy", CHUNKING)
def test_f6_what_is_accepted_is_admitted(policy: str) -> None:
    engine, tape = make_engine(policy, bs=16, P=64, T=256)
    request = make_request("a", 992, 32)
    play(engine, [request])
    assert tape.reasons == {"a": "length"}
    assert request.num_output_tokens == 32 and request.num_preemptions == 0
    assert request.output_token_ids == expected_of(request)


def _four_decodes(policy: Any) -> list[int]:
    engine, tape = make_engine(policy, T=2)
    play(engine, [make_request(str(i), 1, 9) for i in range(4)])
    assert len(tape.reasons) == 4
    return [sum(n for _, n in step.batch) for step in tape.steps]


def test_f8_the_default_policy_exempts_decodes_from_the_budget_and_says_so() -> None:
    assert max(_four_decodes("prefill_first")) == 4
    default = load_plugins().policy("prefill_first")
    described = default.Params.model_fields["budget_counts_decodes"].description or ""
    assert "reference exempts decodes" in described


@pytest.mark.parametrize(
    "policy", [*(p for p in CHUNKING if p != "prefill_first"), "prefill_first:budget_counts_decodes=true"]
)
def test_f8_the_budget_holds_for_decodes_elsewhere(policy: str) -> None:
    assert max(_four_decodes(policy)) == 2
