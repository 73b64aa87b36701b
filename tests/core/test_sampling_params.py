from __future__ import annotations

from typing import Any

import pytest

from batchwright import InvalidRequestError, SamplingParams


def test_the_edges_of_each_range_are_allowed() -> None:
    params = SamplingParams(
        max_tokens=1, temperature=100, top_k=1, top_p=1.0, min_p=0.999, seed=2**64 - 1, stop="end", stop_token_ids=[0]
    )
    assert params.stop == ("end",) and params.stop_token_ids == (0,)
    SamplingParams(temperature=0, top_p=1e-300, min_p=0, seed=0, stop=["a", "b"], logprobs=0)
    SamplingParams(logprobs=20)
    assert SamplingParams(stop=None, stop_token_ids=None, top_k=None, seed=None) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 1.5, True, "5", None]),
        ("temperature", [-0.1, 100.1, float("nan"), float("inf"), "1", None, True]),
        ("top_k", [0, -1, -5, 1.0, True, "5", 2**31]),
        ("top_p", [0, -0.5, 1.0001, float("nan"), "0.5", None]),
        ("min_p", [-0.1, 1, 1.5, float("nan"), "0", None]),
        ("seed", [-1, 2**64, 1.5, "0", True]),
        ("logprobs", [-1, 21, 1.5, True, "5"]),
        ("stop", ["", [""], ["a", 5], 5, [None]]),
        ("stop_token_ids", [[-1], [1.5], 5, "12", ["a"], [True]]),
    ],
)
def test_out_of_range_names_the_field(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequestError, match=field):
            SamplingParams(**{field: value})


def test_vllms_ways_to_say_no_limit_are_explained() -> None:
    for value in (0, -1):
        with pytest.raises(InvalidRequestError, match="or None for all tokens"):
            SamplingParams(top_k=value)


def test_it_never_changes() -> None:
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.max_tokens = 5  # type: ignore[misc]
