"""Overlap: the same decisions and streams while nobody ends by its token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright import PolicyError
from core.random_runs import Run
from toolbox import CHUNKING, Tape


def _decisions(tape: Tape) -> list[Any]:
    return [*map(vars, tape.steps), tape.admitted, tape.reasons]


def _play(run: Run) -> str | None:
    """To the end, or to an error of the policy: one that decides by chance may evict in turns."""
    try:
        run.play(run.make_requests(10))
    except PolicyError as error:
        return str(error)
    return None


# While nobody ends by its token ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_decisions_and_streams_are_those_without_overlap(seed: int) -> None:
    runs = [Run(seed, overlap=overlap) for overlap in (False, True)]
    errors = [_play(run) for run in runs]
    plain, ahead = runs
    assert _decisions(ahead.tape) == _decisions(plain.tape)
    assert errors[0] == errors[1]
    if errors[0] is not None:
        return  # of what is under way then, the outputs would come with the next call
    assert ahead.streams() == plain.streams()
    assert {i: o[-1].outputs[0].token_ids for i, o in ahead.outputs.items()} == ahead.expected
    assert ahead.num_calls <= plain.num_calls + 2  # the last results come with a call of their own
    assert ahead.engine.clock.now_ns() == plain.engine.clock.now_ns()


@pytest.mark.parametrize("policy", CHUNKING)
def test_under_any_policy(policy: str) -> None:
    for seed in range(4):
        runs = [Run(seed, overlap=overlap, names=[policy]) for overlap in (False, True)]
        for run in runs:
            run.play(run.make_requests(10))
        assert _decisions(runs[1].tape) == _decisions(runs[0].tape)
        assert runs[1].streams() == runs[0].streams()
