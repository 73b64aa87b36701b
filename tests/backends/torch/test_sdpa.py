"""The portable kernel against the definition of attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from backends.torch.attention_cases import Problem, layer, problems
from batchwright_backends.torch.kernels import sdpa
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=problems())
def test_it_equals_the_definition(problem: Problem) -> None:
    problem.clear()
    problem.check(ScaledDotProduct(), half_tolerance=2e-2)  # it rounds scores to the dtype


def test_long_prompts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into pieces where there is something before them, and into parts of the scores under a cap."""
    monkeypatch.setattr(sdpa, "PIECE_TOKENS", 16)
    monkeypatch.setattr(sdpa, "GROUP_SCORES", 500)
    for wanted in (layer(), layer(window=11), layer(softcap=2.0), layer(sinks=torch.ones(4))):
        problem = Problem([(70, 5), (70, 0), (1, 40), (17, 3)], wanted, block_size=4)
        problem.clear()
        problem.check(ScaledDotProduct())
