"""What is accepted runs alone to its end under every policy; one token more is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright import InfeasibleRequestError, InvalidRequestError, Limits, Scheduler
from toolbox import BASIC, check_empty, make_engine, make_request, play


@given(
    block_size=st.integers(1, 5),
    num_blocks=st.integers(1, 6),
    prompt=st.integers(1, 24),
    max_tokens=st.integers(1, 12),
    longest=st.one_of(st.none(), st.integers(2, 30)),
    policy=st.sampled_from(BASIC),
)
def test_accepted_means_it_ends(
    block_size: int, num_blocks: int, prompt: int, max_tokens: int, longest: int | None, policy: str
) -> None:
    scheduler = Scheduler(
        policy,
        num_blocks=num_blocks,
        block_size=block_size,
        limits=Limits(max_num_batched_tokens=5, max_model_len=longest),
    )
    request = make_request("a", prompt, max_tokens)
    allowed = max_tokens if longest is None else min(max_tokens, longest - prompt)
    fits = allowed >= 1 and prompt + allowed - 1 <= num_blocks * block_size
    if not fits:
        with pytest.raises(InfeasibleRequestError, match=str(longest) if allowed < 1 else "num_blocks"):
            scheduler.add(request)
        assert not scheduler.has_unfinished()
        return
    scheduler.add(request)
    for _ in range(200):
        batch = scheduler.schedule()
        scheduler.update(batch, [1] * int(batch.samples.sum()))
        if request.is_finished:
            break
    assert (request.num_output_tokens, request.finish_reason, request.num_preemptions) == (allowed, "length", 0)
    check_empty(scheduler)


def test_a_refused_request_can_go_to_another_engine() -> None:
    small, _ = make_engine(P=2)
    large, tape = make_engine(P=20)
    request = make_request("a", 20, 4)
    with pytest.raises(InfeasibleRequestError):
        small.add_request(request)
    play(large, [request])
    assert tape.reasons == {"a": "length"}


@pytest.mark.parametrize("given_tokens", [0, -1, 1.5, True, "3"])
def test_a_hidden_length_out_of_range(given_tokens: Any) -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="num_output_tokens must be"):
        engine.add_request(make_request("a", 4, 4), num_output_tokens=given_tokens)
    assert not engine.has_unfinished()


@pytest.mark.parametrize(("hidden", "reason", "length"), [(2, "trace", 2), (5, "length", 5), (9, "length", 5)])
def test_a_hidden_length_ends_the_request_and_no_policy_sees_it(hidden: int, reason: str, length: int) -> None:
    engine, tape = make_engine()
    request = make_request("a", 4, 5)
    engine.add_request(request, num_output_tokens=hidden)
    assert request.max_tokens == 5
    public = {n: getattr(request, n) for n in dir(request) if not n.startswith("_") and n != "sampling_params"}
    other = make_request("a", 4, 5)
    engine2, _ = make_engine()
    engine2.add_request(other)
    same = {n: getattr(other, n) for n in public}
    assert repr(public) == repr(same)
    play(engine, [])
    assert (tape.reasons["a"], request.num_output_tokens) == (reason, length)
