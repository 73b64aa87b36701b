"""Bracketing and bisection on answers that are made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.lab.designs.search import CHECK, bracket, contradictions, most_left, next_rate


def search(
    met: Callable[[float], bool],
    *,
    lowest: float = 1 / 64,
    highest: float = 64,
    tolerance: float = 0.05,
    whole: bool = False,
) -> dict[float, bool]:
    answers: dict[float, bool] = {}
    while True:
        rate = next_rate(answers, start=1.0, lowest=lowest, highest=highest, tolerance=tolerance, whole=whole)
        if rate is None:
            return answers
        assert rate not in answers and lowest <= rate <= highest
        answers[rate] = met(rate)
        assert len(answers) < 100


@given(edge=st.floats(0.02, 60), tolerance=st.sampled_from([0.01, 0.05, 0.3]))
def test_the_edge_of_a_monotone_answer_is_found(edge: float, tolerance: float) -> None:
    low, high = bracket(search(lambda rate: rate <= edge, tolerance=tolerance))
    assert low is not None and high is not None
    assert low <= edge < high <= low * (1 + tolerance) * (1 + 1e-9)


@given(edge=st.floats(1, 999), tolerance=st.sampled_from([0.001, 0.05, 0.3]))
def test_of_whole_numbers_the_edge_is_found_to_one(edge: float, tolerance: float) -> None:
    answers = search(lambda rate: rate <= edge, lowest=1, highest=1000, tolerance=tolerance, whole=True)
    assert all(rate == int(rate) for rate in answers)
    low, high = bracket(answers)
    assert low is not None and high is not None
    assert low <= edge < high and (high == low + 1 or high <= low * (1 + tolerance) * (1 + 1e-9))
    left = [most_left({rate: answers[rate] for rate in list(answers)[:num]}, tolerance, whole=True)
            for num in range(1, len(answers))]  # fmt: skip
    assert all(number > 0 for number in left)


@given(edge=st.floats(0.1, 10), seed=st.integers(0, 10**6), noise=st.floats(0, 0.1))
def test_with_noise_it_is_found_within_the_noise(edge: float, seed: int, noise: float) -> None:
    """Each answer is that of an edge which is up to so much off; a bracket is a yes and a no, nothing else."""
    rng = random.Random(seed)
    answers = search(lambda rate: rate <= edge * math.exp(rng.uniform(-noise, noise)))
    low, high = bracket(answers)
    assert low is not None and high is not None and high <= low * 1.05 * (1 + 1e-9)
    assert edge * math.exp(-noise) / 1.051 <= low and high <= edge * math.exp(noise) * 1.051
    assert answers[low] and not answers[high]


@given(edge=st.floats(0.02, 60))
def test_it_goes_on_from_any_part_of_the_answers(edge: float) -> None:
    """A search that was stopped after any number of answers asks what it would have asked."""
    answers = search(lambda rate: rate <= edge)
    asked = list(answers)
    for num in range(len(asked)):
        part = dict(sorted((rate, answers[rate]) for rate in asked[:num]))
        assert next_rate(part, start=1.0, lowest=1 / 64, highest=64, tolerance=0.05) == asked[num]


def test_it_says_when_there_is_no_edge_within_the_range() -> None:
    assert bracket(search(lambda rate: False)) == (None, 1 / 64)
    assert bracket(search(lambda rate: True)) == (64, None)
    assert bracket(search(lambda rate: rate < 3, lowest=5, highest=9)) == (None, 5)


def test_it_does_not_ask_often() -> None:
    for edge in (0.03, 0.9, 1.1, 7.3, 55):
        assert len(search(lambda rate, edge=edge: rate <= edge)) <= 14  # type: ignore[misc]


def test_an_answer_that_is_not_monotone_is_noticed() -> None:
    """Above the first no there is a yes, a quarter higher: said, and the bracket stays below."""
    answers = search(lambda rate: rate <= 10 or 11.5 <= rate < 13.5)
    low, high = bracket(answers)
    assert low is not None and high is not None and low <= 10 < high
    found = contradictions(answers)
    assert found and all(11.5 <= rate < 13.5 for rate in found)
    assert contradictions(search(lambda rate: rate <= 10)) == ()


def test_a_no_below_the_bracket_moves_it() -> None:
    answers = search(lambda rate: rate < 7 or 8.05 < rate <= 10)
    low, high = bracket(answers)
    assert low is not None and high is not None and 6.6 < low < 7 <= high < 7.4
    assert any(rate > 8 for rate in contradictions(answers))


def test_it_looks_beside_the_bracket() -> None:
    answers = search(lambda rate: rate <= 10)
    low, high = bracket(answers)
    assert low is not None and high is not None
    for beside in (low / CHECK, high * CHECK):
        assert any(rate / 1.06 < beside < rate * 1.06 for rate in answers)


@pytest.mark.parametrize("edge", [0.1, 1.7, 9.0])
def test_the_estimate_of_what_is_left_is_right_once_it_is_bracketed(edge: float) -> None:
    answers = search(lambda rate: rate <= edge)
    asked = list(answers)
    for num in range(1, len(asked)):
        part = {rate: answers[rate] for rate in asked[:num]}
        if None not in bracket(part):
            assert 0 <= most_left(part, 0.05) - (len(asked) - num) <= 2
