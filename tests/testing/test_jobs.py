"""``drive`` runs jobs as the engine would, and its tape tells what became of them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import HOLD, Policy, PolicyError, Refusal, Request, Step, hookimpl
from batchwright.errors import BatchwrightError, ConfigError, InfeasibleRequestError
from batchwright.testing import Job, Tape, drive
from batchwright.testing.tape import LEGEND
from toolbox import make_engine, make_request, play


def test_it_decides_as_an_engine_does() -> None:
    """Scenario P1, beside an engine on the fake backend: evictions, batches, tokens and free blocks of every step."""
    tape = drive("prefill_first", [Job(str(i), 8, 24) for i in range(4)], num_blocks=16)
    engine, other = make_engine("prefill_first", bs=4, P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert [
        (s.number, list(s.batch.items()), list(s.sampled), list(s.preempted), s.free_blocks) for s in tape.steps
    ] == [(s.index, s.batch, s.sampled, s.preempted, s.free_blocks) for s in other.steps]
    assert tape.num_steps == 39
    assert tape.preemptions == [(9, "3"), (13, "2")]
    assert tape.num_recomputed == sum(r.num_recomputed for r in tape.requests.values()) > 0
    assert tape.num_computed == sum(sum(count for _, count in s.batch) for s in other.steps)


def test_a_tape_is_drawn() -> None:
    jobs = [Job("chat", 4, 4), Job("report", 30, 1, at=1), Job("b", 4, 9), Job("late", 3, 1, at=14)]
    tape = drive("prefill_first", jobs, num_blocks=11, max_num_batched_tokens=16, max_num_seqs=2)
    assert str(tape).splitlines() == [
        "step    0         10",
        "chat    o__ooo",
        "b       o__oooooooo",
        "report   #o",
        "late                  o",
        LEGEND,
    ]
    assert tape.tokens("chat") == [0, 3, 4, 5]
    assert tape.first_token("report") == 2
    assert tape.gaps("chat") == [3, 1, 1]


def test_who_waits_and_who_is_evicted_is_drawn() -> None:
    tape = drive("prefill_first", [Job(str(i), 7, 12) for i in range(3)], num_blocks=6)
    rows = str(tape).splitlines()
    assert rows[3].startswith("2     oox")
    assert rows[2].startswith("1     ooooooox"[:12])
    assert {(number, name) for number, name in tape.preemptions} == {(2, "2"), (6, "1")}


def test_a_long_tape_is_cut_and_says_so() -> None:
    lines = str(drive("prefill_first", [Job("long", 4, 150)])).splitlines()
    assert len(lines[1]) == len("long  ") + 100
    assert lines[2] == "and 50 more steps"


def test_a_tape_of_nothing_is_empty() -> None:
    tape = drive("prefill_first", [])
    assert (tape.num_steps, tape.steps, str(tape)) == (0, [], f"step\n{LEGEND}")


def test_steps_in_which_nobody_is_there_pass() -> None:
    tape = drive("prefill_first", [Job("a", 4, 1), Job("b", 4, 2, at=10)])
    assert [step.number for step in tape.steps] == [0, 10, 11]
    assert tape.requests["b"].arrival_s == 10
    assert drive("prefill_first", [Job("b", 4, 2, at=10)], step_s=0.02).requests["b"].arrival_ns == 200_000_000


def test_those_of_one_step_arrive_in_order_and_others_by_step() -> None:
    jobs = [Job("c", 4, 1, at=1), Job("a", 4, 1), Job("b", 4, 1), Job("d", 4, 1, at=1)]
    assert list(drive("prefill_first", jobs).requests) == ["a", "b", "c", "d"]


def test_prompts_are_their_own_unless_they_are_given() -> None:
    own = drive("prefill_first", [Job("a", 16, 1), Job("b", 16, 1, at=1)])
    assert own.steps[1].batch == {"b": 16}
    given = drive("prefill_first", [Job("a", range(16), 1), Job("b", range(16), 1, at=1)])
    assert given.steps[1].batch == {"b": 4}
    off = drive("prefill_first", [Job("a", range(16), 1), Job("b", range(16), 1, at=1)], prefix_cache=False)
    assert off.steps[1].batch == {"b": 16}
    at_once = drive(
        "prefill_first", [Job("a", range(16), 1), Job("b", range(16), 1)], prefix_cache={"visible": "scheduled"}
    )
    assert at_once.steps[0].batch == {"a": 16, "b": 4}


def test_the_true_length_is_hidden() -> None:
    seen: list[int] = []

    class Looks(Policy):
        @hookimpl
        def request_arrived(self, request: Request) -> None:
            seen.append(request.max_tokens)

    tape = drive(Looks(), [Job("a", 4, 3, max_tokens=50)])
    assert seen == [50]
    assert tape.tokens("a") == [0, 1, 2]
    assert tape.requests["a"].finish_reason == "trace"


def test_settings_are_those_that_the_policy_wants() -> None:
    """``stall_free`` bounds residents by ``max_num_seqs``; what is said goes before what is wanted."""
    jobs = [Job(str(i), 4, 3) for i in range(3)]
    assert [len(s.batch) for s in drive("stall_free", jobs, max_num_seqs=2).steps][:3] == [2, 2, 2]
    assert len(drive("stall_free", jobs, max_num_residents=1).steps[0].batch) == 1
    fields = drive("priority", [Job("a", 4, 3, priority=5, client_id="x")]).requests["a"]
    assert (fields.priority, fields.client_id) == (5, "x")


def test_refusals_are_told() -> None:
    class Refuses(Policy):
        @hookimpl
        def arrival(self, request: Request) -> Any:
            return Refusal("no more today") if request.request_id == "b" else True

    tape = drive(Refuses(), [Job("a", 4, 1), Job("b", 4, 1)])
    assert (list(tape.requests), tape.refused) == (["a"], {"b": "no more today"})


def test_a_broken_rule_shows_the_tape() -> None:
    class Idles(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Request]:
            if step.index < 2:
                yield from step.running or step.waiting

    with pytest.raises(PolicyError, match="progress") as raised:
        drive(Idles(), [Job("a", 4, 5)])
    assert raised.value.__notes__ == [f"step  0\na     oo\n{LEGEND}"]
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_a_broken_rule_shows_the_tape", "drive"]  # and nothing of the core


def test_what_a_hook_raises_is_the_cause() -> None:
    class Fails(Policy):
        @hookimpl
        def admission(self, step: Step) -> Any:
            raise LookupError("whom?")

    with pytest.raises(PolicyError, match="raised") as raised:
        drive(Fails(), [Job("a", 4, 5)])
    assert isinstance(raised.value.__cause__, LookupError)
    assert traceback.extract_tb(raised.value.__cause__.__traceback__)[-1].name == "admission"


def test_a_fault_of_an_observer_is_an_error() -> None:
    """Also in the last step, and in a plugin beside the policy."""

    class Fails(Policy):
        @hookimpl
        def step_finished(self, step: Step) -> None:
            raise ValueError("what is this?")

    class FailsAtTheEnd:
        @hookimpl
        def request_finished(self) -> None:
            raise ValueError("gone")

    with pytest.raises(BatchwrightError, match=r"step_finished of 'fails' raised ValueError\('what is this\?'\)"):
        drive(Fails(), [Job("a", 4, 1)])
    with pytest.raises(BatchwrightError, match=r"request_finished of .*FailsAtTheEnd.* raised ValueError\('gone'\)"):
        drive("prefill_first", [Job("a", 4, 3)], plugins=[FailsAtTheEnd()])


def test_it_does_not_run_for_ever() -> None:
    class PingPong(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Request]:
            yield from (*step.running, *step.waiting)

        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return next((r for r in step.running if r.is_resident and r is not request), HOLD)

    with pytest.raises(BatchwrightError, match=r"after 50 steps \(most_steps\) these had not ended: b, a, later"):
        drive(
            PingPong(),
            [Job("a", 8, 40), Job("b", 8, 40), Job("later", 4, 1, at=60)],
            num_blocks=12,
            max_num_residents=1,
            most_steps=50,
        )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (lambda: Job("a", 0, 1), "job 'a': prompt must have 1 to 99999 tokens, not 0"),
        (lambda: Job("a", [], 1), "job 'a': prompt must have 1 to 99999 tokens, not 0"),
        (lambda: Job("a", 4, 0), r"job 'a': output must be 1 to max_tokens \(0\), not 0"),
        (lambda: Job("a", 4, 9, max_tokens=8), r"output must be 1 to max_tokens \(8\), not 9"),
        (lambda: Job("a", 4, 1, at=-1), "job 'a': at must be a step, 0 or later, not -1"),
    ],
)
def test_a_wrong_job_is_refused(job: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job()


def test_wrong_settings_and_questions_are_refused() -> None:
    with pytest.raises(InfeasibleRequestError):
        drive("prefill_first", [Job("a", 12, 4)], num_blocks=2)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        drive("prefill_first", [], max_num_seqs=0)
    with pytest.raises(TypeError, match="no_such"):
        drive("prefill_first", [], no_such=1)
    tape = drive("prefill_first", [Job("a", 4, 1)])
    with pytest.raises(KeyError, match="there was no request 'b'; there were a"):
        tape.tokens("b")
    with pytest.raises(KeyError, match="there was no request 'b'; there were none"):
        Tape().first_token("b")


def test_both_names_are_what_they_say_in_any_order() -> None:
    """A module of the name of a function would take its place."""
    import batchwright.testing as kit

    assert callable(kit.drive) and isinstance(kit.Job, type) and callable(kit.drive)
