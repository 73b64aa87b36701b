from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchwright import SLO, InvalidRequestError, Request, SamplingParams


def test_defaults_and_fields() -> None:
    request = Request(
        "a",
        [5, 6, 7],
        SamplingParams(max_tokens=9),
        arrival_ns=1_500_000_000,
        priority=-2,
        client_id="c",
        weight=2.5,
        deadline_s=3.0,
        slo=SLO(ttft_s=0.5),
        predicted_output_tokens=4,
        session_id="s",
        program_id="p",
        extra={"tier": "gold"},
    )
    assert request.prompt_token_ids == [5, 6, 7] and request.output_token_ids == []
    assert (request.num_prompt_tokens, request.num_pending, request.max_tokens) == (3, 3, 9)
    assert (request.arrival_s, request.priority, request.client_id, request.weight) == (1.5, -2, "c", 2.5)
    assert request.slo == SLO(0.5, None) and request.extra["tier"] == "gold"
    assert not (request.is_waiting or request.is_resident or request.is_finished or request.is_decode)
    assert repr(request) == "<Request 'a' new, 3+0 tokens, 0 computed, 0 scheduled>"
    assert Request("b", [1]).extra == {}


def test_what_policies_read_they_cannot_change() -> None:
    request = Request("a", [5, 6, 7], extra={"k": 1})
    for container in (request.prompt_token_ids, request.extra):
        with pytest.raises(TypeError):
            container[0] = 1  # type: ignore[index]
    tokens = request.prompt_token_ids[:]
    tokens[0] = 9
    assert request.prompt_token_ids[0] == 5


def test_a_window_on_tokens() -> None:
    request = Request("a", [5, 6, 7, 8])
    request._tokens.extend([9, 10])
    window = request.output_token_ids
    assert (len(window), window[0], window[-1], window[:], list(window)) == (2, 9, 10, [9, 10], [9, 10])
    assert window == [9, 10] and window != [9] and window != 5
    assert repr(window) == "[9, 10]"
    for place in (2, -3):
        with pytest.raises(IndexError):
            window[place]
    with pytest.raises(TypeError):
        hash(window)


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], dtype=np.uint8),
        np.array([1, 2, 3], dtype=np.int64)[::1],
        np.array([1, 0, 2, 0, 3])[::2],
    ],
)
def test_prompts_in_any_form(tokens: Any) -> None:
    assert Request("a", tokens).prompt_token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        (),
        np.array([], dtype=np.int64),
        [-1],
        [2**31],
        [1.0],
        ["a"],
        [None],
        None,
        5,
        "abc",
        b"abc",
        b"abcd",
        bytearray(b"abcd"),
        np.array([1.0, 2.0]),
        np.array([[1, 2], [3, 4]]),
        np.array([2**40]),
        np.array([-(2**32) + 5]),
        np.array([2**63], dtype=np.uint64),
    ],
    ids=repr,
)
def test_prompts_that_are_none(tokens: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt_token_ids"):
        Request("a", tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_id": ""}, "request_id must be a non-empty string"),
        ({"request_id": 5}, "request_id must be a non-empty string, not 5"),
        ({"priority": 1.5}, "priority must be a whole number, not 1.5"),
        ({"sampling_params": {"max_tokens": 3}}, "sampling_params must be a SamplingParams"),
        ({"weight": 0}, "weight must be a number above 0, not 0"),
        ({"weight": -1.0}, "weight must be a number above 0"),
        ({"weight": float("nan")}, "weight must be a number above 0"),
        ({"weight": "2"}, "weight must be a number above 0"),
        ({"predicted_output_tokens": -1}, "predicted_output_tokens must be a whole number of at least 0"),
        ({"predicted_output_tokens": "4"}, "predicted_output_tokens must be a whole number of at least 0"),
    ],
)
def test_fields_out_of_their_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Request(**{"request_id": "a", "prompt_token_ids": [1], **fields})
