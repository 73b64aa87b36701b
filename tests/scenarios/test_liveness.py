"""Scenarios L1 to L4: who waits behind whom, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from batchwright import Params, Policy, Request, Step, hookimpl
from toolbox import make_engine, make_request, play


def _l1(policy: str) -> Any:
    engine, tape = make_engine(policy, bs=4, T=16)
    play(engine, {0: [make_request("D", 4, 8)], 1: [make_request("L", 160, 1)], 2: [make_request("s", 4, 1)]})
    return tape


def test_l1_a_long_prompt_stalls_decodes_under_the_default_policy() -> None:
    tape = _l1("prefill_first")
    assert tape.token_steps("D")[:2] == [0, 12]
    assert tape.token_steps("s") == [11]


def test_l1_and_under_a_stall_free_one_it_does_not() -> None:
    tape = _l1("stall_free")
    steps = tape.token_steps("D")
    assert len(steps) == 8
    assert all(later - earlier == 1 for earlier, later in pairwise(steps))
    assert tape.reasons == {"D": "length", "L": "length", "s": "length"}


def _l2(policy: str) -> list[int]:
    engine, tape = make_engine(policy, bs=4, T=16)
    arrivals = {0: [make_request("D", 4, 5)]}
    arrivals |= {k: [make_request(f"s{k}", 4, 1)] for k in range(1, 21)}
    play(engine, arrivals)
    assert len(tape.reasons) == 21
    return tape.token_steps("D")


def test_l2_a_stream_of_prompts_stops_all_decodes() -> None:
    assert _l2("prefill_first")[:2] == [0, 21]


@pytest.mark.parametrize("guard", [1, 2, 3, 7])
def test_l2_the_guard_bounds_the_gap(guard: int) -> None:
    steps = _l2(f"prefill_first:decode_interleave={guard}")
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert len(steps) == 5
    assert max(gaps) <= guard + 1
    if guard < 7:
        assert max(gaps) == guard + 1  # prompts keep their turns: the guard does no more than it says


def test_l3_the_faithful_default_admits_a_second_and_starves_it() -> None:
    engine, tape = make_engine("prefill_first", S=1)
    play(engine, {0: [make_request("first", 4, 50)], 1: [make_request("second", 4, 3)]})
    assert tape.token_steps("second") == [1, 51, 52]


def test_l3_with_a_bound_on_residents_it_is_admitted_when_the_first_ends() -> None:
    engine, tape = make_engine("prefill_first", S=1, max_num_residents=1)
    play(engine, {0: [make_request("first", 4, 50)], 1: [make_request("second", 4, 3)]})
    assert tape.finish_steps()["first"] == 49
    assert tape.admitted == [(0, "first"), (50, "second")]
    assert tape.token_steps("second") == [50, 51, 52]


class SkipAheadParams(Params):
    max_passes: int = 3


class SkipAhead(Policy):
    """First come, first served, but who does not fit may be passed over, a bounded number of times."""

    Params = SkipAheadParams

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.passes: dict[str, int] = {}

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield step.running
        skipped: list[Request] = []
        for request in step.waiting:
            yield request
            if request.num_scheduled:
                for one in skipped:
                    self.passes[one.request_id] = self.passes.get(one.request_id, 0) + 1
            else:
                skipped.append(request)
            if any(self.passes.get(one.request_id, 0) >= self.params.max_passes for one in skipped):
                break


def _l4_requests() -> list[Request]:
    return [make_request("first", 22, 8), make_request("second", 16, 2), make_request("third", 3, 2)]


def test_l4_nobody_overtakes_under_the_default_policy() -> None:
    engine, tape = make_engine("prefill_first", bs=4, P=8)
    play(engine, _l4_requests())
    assert tape.token_steps("third")[0] == 8


def test_l4_a_policy_may_skip_ahead_a_bounded_number_of_times() -> None:
    policy = SkipAhead(max_passes=3)
    engine, tape = make_engine(policy, bs=4, P=8)
    stream = {k: [make_request(f"s{k}", 3, 2)] for k in range(1, 40)}
    play(engine, {0: _l4_requests(), **stream})
    assert tape.token_steps("third")[0] <= 1
    assert policy.passes["second"] == 3  # it was passed over, and no more often than that
    assert len(tape.reasons) == 42
    overtaking = [who for _, who in tape.admitted[: [who for _, who in tape.admitted].index("second")]]
    assert len(overtaking) == 1 + 3  # "first" fits; then three pass
