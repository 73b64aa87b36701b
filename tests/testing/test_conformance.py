"""The conformance kit catches each planted fault by the check that is meant for it, and passes what is sound."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import testing.broken.progress  # noqa: F401 - its policies enter CAUGHT_BY
from batchwright import ConfigError, Params, PluginError, Policy, Ranked, Refusal, Request, hookimpl
from batchwright.plugins import load_plugins
from batchwright.testing import CHECKS, ConformanceError, check_policy, run_checks
from batchwright.testing.conformance import describe
from batchwright.testing.kit import Kit
from batchwright.testing.subject import Subject
from testing.broken.answers import IgnoresTheBudget, ShortensPrefilling
from testing.broken.declarations import TakesTurns
from testing.broken.leaks import GlobalChance, KeepsTheEnded
from testing.broken.sound import CAUGHT_BY, Limited, OwnQueue, Sound
from toolbox import SHIPPED


def bad(report: Any) -> list[str]:
    return [o.name for o in report.outcomes if o.is_bad]


# What is sound passes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_pass(name: str) -> None:
    assert check_policy(name).ok


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_do_not_look_at_all_who_wait(name: str) -> None:
    """What they do not declare yet holds for them."""
    declared = type("Declared", (load_plugins().policies[name],), {"scans_waiting": False})
    (outcome,) = run_checks(declared, checks=["complexity"]).outcomes
    assert outcome.status == "passed"


@pytest.mark.parametrize("cls", [Sound, Limited, OwnQueue, Policy])
def test_sound_policies_pass(cls: type[Policy]) -> None:
    report = run_checks(cls)
    assert bad(report) == []
    assert [o.name for o in report.outcomes if o.status == "skipped"] == ["stationary", "steady", "complexity"]


@pytest.mark.parametrize(
    "spec",
    [
        "vllm_v1:scheduling_policy=priority",
        {"admission": "vllm_v1", "chunking": {"use": "stall_free", "chunk_size": 5}, "preemption": "prefill_first"},
    ],
    ids=str,
)
def test_parameters_and_composites_pass(spec: Any) -> None:
    assert bad(run_checks(spec, seed=3)) == []


# What is not is caught ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", list(CAUGHT_BY), ids=lambda c: c.__name__)
def test_each_fault_is_caught_by_the_check_that_is_meant_for_it(cls: type[Policy]) -> None:
    report = run_checks(cls)
    assert bad(report) == [CAUGHT_BY[cls]], str(report)


def test_every_check_has_a_planted_fault() -> None:
    assert set(CAUGHT_BY.values()) == set(CHECKS)


def test_a_policy_that_is_stationary_only_with_some_parameters_is_caught() -> None:
    """The guard of prefill_first turns from prompts to decodes and back without anything having happened."""
    base = load_plugins().policies["prefill_first"]

    class Guarded(base):  # type: ignore[misc, valid-type]
        def __init__(self, params: Any = None, **values: Any) -> None:
            super().__init__(params, **values)
            self.stationary = True  # which it is not, and the default policy says so

    assert bad(run_checks(Guarded(decode_interleave=2))) == ["stationary"]
    assert "stationary" not in bad(run_checks(base(decode_interleave=2)))


def test_a_stationary_policy_that_leaves_a_decode_out_when_nobody_waits_is_caught() -> None:
    """It decides the same again while nothing changes, but is not asked after an end: then all decode."""

    class Pairs(load_plugins().policies["stall_free"]):  # type: ignore[misc]
        stationary = True

        @hookimpl
        def admission(self, step: Any) -> Any:
            odd = not step.waiting and not step.prefilling and len(step.running) % 2 and len(step.running) > 1
            return [step.running[:-1]] if odd else super().admission(step)

    report = run_checks(Pairs, checks=["stationary"])
    assert bad(report) == ["stationary"]
    assert "it leaves a decode out" in str(report)


class Raises(Sound):
    """Raises while so many wait."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.num = num

    @hookimpl
    def admission(self, step: Any) -> Any:
        if len(step.waiting) >= self.num:
            raise ValueError("so many")
        return super().admission(step)


ASKED = [name for name in CHECKS if name not in ("stationary", "steady", "complexity", "params")]


def test_checks_are_not_reached_where_a_fault_ends_every_run() -> None:
    report = run_checks(lambda: Raises(0), checks=ASKED)
    assert [(o.name, o.status) for o in report.outcomes[:1]] == [("answers", "failed")]
    assert {o.status for o in report.outcomes[1:]} == {"unreached"}
    counts = f"0 of {len(ASKED)} checks passed, 1 failed, {len(ASKED) - 1} not reached"
    assert report.summary().endswith(f": {counts}")
    line = str(report).splitlines()[-1]
    assert line.startswith("no_mutation, budgets, offers, ") and line.endswith("; mend this first: answers")


@pytest.mark.parametrize("expected", [{}, {"offers": "it raises"}], ids=str)
def test_a_check_that_is_not_reached_is_no_pass(expected: dict[str, str]) -> None:
    report = run_checks(lambda: Raises(1), expected, checks=["offers"])
    assert [o.status for o in report.outcomes] == ["unreached"] and report.ok == bool(expected)


def test_checks_that_one_whole_run_could_make_are_reached() -> None:
    """It raises in some runs only: what the others show stands."""
    statuses = {o.name: o.status for o in run_checks(lambda: Raises(4), checks=["answers", "offers"]).outcomes}
    assert statuses == {"answers": "failed", "offers": "passed"}


def test_a_fault_that_shows_in_one_check_only_is_told_there() -> None:
    (outcome,) = run_checks(lambda: Raises(40), checks=["no_leaks"]).outcomes
    assert outcome.status == "failed"
    assert "admission: raised ValueError: so many" in outcome.detail and outcome.where.startswith("scenario waves")


def test_nothing_is_said_of_a_policy_that_takes_nobody() -> None:
    class RefusesAll(Sound):
        @hookimpl
        def arrival(self, request: Request) -> Refusal:
            return Refusal("not today")

    report = run_checks(RefusesAll, checks=["answers", "offers", "progress", "exhaustion", "deterministic"])
    assert bad(report) == ["progress"]
    assert {o.status for o in report.outcomes if o.name != "progress"} == {"unreached"}
    assert str(report).endswith("mend this first: progress")


def test_hidden_lengths_are_not_reached_by_chance() -> None:
    (outcome,) = run_checks(GlobalChance, checks=["no_oracle"]).outcomes
    assert (outcome.status, outcome.detail.partition(": ")[2]) == ("unreached", "deterministic")


def test_a_policy_that_leaves_decodes_out_after_a_live_swap_only_is_caught() -> None:
    """Alone it never has more decodes than its chunk; others bring it more."""

    class Few(load_plugins().policies["stall_free"]):  # type: ignore[misc]
        stationary = steady = True

        @hookimpl
        def admission(self, step: Any) -> Any:
            for place, offer in enumerate(super().admission(step)):
                yield offer if place else offer[: self.params.chunk_size]

    report = run_checks(lambda: Few(chunk_size=2), checks=["steady"])
    assert bad(report) == ["steady"] and "-swaps, step " in str(report)


def test_a_fault_of_a_plugin_is_caught() -> None:
    class Muddles:
        @hookimpl(wrapper=True)
        def chunking(self, step: Any) -> Any:
            answer = yield
            return answer + 1

    report = run_checks("prefill_first", plugins=[Muddles])
    assert bad(report) == ["budgets"]
    assert run_checks("prefill_first", plugins=[Muddles()], checks=["params", "budgets"]).outcomes[0].name == "budgets"


# What is said -------------------------------------------------------------------------------------------------


def sentence(policy: Any, check: str) -> str:
    (outcome,) = run_checks(policy, checks=[check]).outcomes
    assert outcome.status == "failed"
    return str(outcome)


@pytest.mark.parametrize(
    ("cls", "parts"),
    [
        (IgnoresTheBudget, ["expected chunking of 0 to min(pending", "tokens, allowed are 0 to ", "step "]),
        (ShortensPrefilling, ["leave the view as it was; it changed step.prefilling from [r", "copy what you want"]),
        (KeepsTheEnded, ["are still held, some by KeepsTheEnded.history: drop them in request_finished"]),
        (TakesTurns, ["since stationary is True", "; before batch r", ", now batch r"]),
        (GlobalChance, ["chance that is not step.rng", "; once batch r", ", then batch r"]),
    ],
)
def test_sentences_say_what_was_expected_and_done_and_where(cls: type[Policy], parts: list[str]) -> None:
    said = sentence(cls, CAUGHT_BY[cls])
    for part in (*parts, f"{CAUGHT_BY[cls]}: expected ", "(scenario ", "seed=0"):
        assert part in said, said


def test_a_policy_with_a_name_is_repeated_by_a_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from batchwright import Policy, hookimpl\n\n\n"
        "class Mine(Policy):\n    @hookimpl\n    def chunking(self, step, request):\n        return -1\n"
    )
    (outcome,) = run_checks(f"{file}:Mine", checks=["budgets"], seed=5).outcomes
    assert outcome.again == f"batchwright check {file}:Mine --only budgets --seed 5"


@pytest.mark.parametrize("seed", [0, 4])
def test_the_same_seed_finds_the_same(seed: int) -> None:
    one, other = (run_checks(TakesTurns, seed=seed).to_json() for _ in range(2))
    assert one == other


def test_other_seeds_are_other_states() -> None:
    def runs(seed: int) -> Any:
        return [run.decisions for run in Kit(Subject(Sound), seed).roomy]

    assert runs(0) == runs(0) != runs(1)


def test_the_states_are_worth_looking_at() -> None:
    """Requests wait, are cut, are evicted, hit the prefix cache, are aborted; and the engine idles between."""
    kit = Kit(Subject("prefill_first"))
    roomy, tight = ([d for run in runs for d in run.decisions] for runs in (kit.roomy, kit.tight))
    assert sum(bool(d.cut) for d in roomy) > 20 and not any(d.preempted for d in roomy)
    assert sum(d.num_waiting > 1 for d in roomy) > 30
    assert sum(len(d.preempted) for d in tight) > 15
    assert sum(reason == "abort" for run in kit.aborts for reason in run.reasons.values()) > 10
    assert sum(d.is_steady for run in kit.steady for d in run.decisions) > 50
    assert {"length", "trace"} <= {reason for run in kit.roomy for reason in run.reasons.values()}
    assert all(run.is_complete for run in (*kit.roomy, *kit.tight, *kit.aborts, *kit.swaps))


# Expected failures --------------------------------------------------------------------------------------------


def test_an_expected_failure_is_none() -> None:
    report = check_policy(TakesTurns, {"stationary": "it takes turns"})
    assert report.ok
    assert "stationary: fails as expected (it takes turns): expected the decision" in str(report)


def test_an_expected_failure_that_passes_is_one() -> None:
    with pytest.raises(ConformanceError, match=r"offers: it passes, and expected_failures says it fails \(once\)"):
        check_policy(Sound, {"offers": "once"}, checks=["offers"])


def test_one_unexpected_failure_is_enough() -> None:
    with pytest.raises(ConformanceError, match=r"take_turns|takes_turns, seed 0: \d+ of 17 checks passed, 1 failed"):
        check_policy(TakesTurns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expected_failures": {"ofers": "why"}}, "there is no check 'ofers'; did you mean 'offers'"),
        ({"checks": ["progres"]}, "there is no check 'progres'; did you mean 'progress'"),
        ({"expected_failures": {"offers": ""}}, "'offers' needs its reason in words"),
    ],
)
def test_names_and_reasons_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_checks(Sound, **options)


# What can be checked ------------------------------------------------------------------------------------------


class Table(Policy):
    """Made with something that no config could say."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order
        self.num_steps = 0

    @hookimpl
    def step_started(self, step: Any) -> None:
        self.num_steps += 1


def test_an_object_is_left_alone() -> None:
    policy = Table([1, 2])
    assert bad(run_checks(policy, checks=[n for n in CHECKS if n != "params"])) == []
    assert policy.num_steps == 0


def test_an_object_is_made_anew_with_its_parameters() -> None:
    """A copy would call back into the original."""

    class CallsBack(Limited):
        def __init__(self, params: Any = None, **values: Any) -> None:
            super().__init__(params, **values)
            self.asked: list[int] = []
            self.ask = lambda: self.asked.append(1)

        @hookimpl
        def step_started(self) -> None:
            self.ask()

        @hookimpl
        def policy_attached(self) -> None:
            self.asked.clear()

    policy = CallsBack(most=1)
    (made,) = Subject(policy).policies()
    assert made is not policy and made.params.most == 1
    assert bad(run_checks(policy, checks=["progress", "params"])) == [] and policy.asked == []


def test_a_function_that_makes_a_policy() -> None:
    assert bad(run_checks(lambda: Table([1]), checks=["progress", "no_leaks"])) == []
    with pytest.raises(ConfigError, match="a function that makes a policy"):
        run_checks(lambda: 7)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("what", [7, Params, object()])
def test_what_is_no_policy_is_refused(what: Any) -> None:
    with pytest.raises((ConfigError, PluginError), match="check a policy object, a policy class, a function that"):
        check_policy(what)


def test_what_cannot_be_copied_is_refused() -> None:
    policy = Table([])
    policy.order = (i for i in range(3))  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"Table cannot be copied .*give the class, a function that"):
        check_policy(policy)


def test_a_rank_by_the_clock_is_told_and_ends() -> None:
    """It once went round for ever."""

    class ByTheClock(Ranked):
        def rank(self, request: Any) -> float:
            return time.perf_counter()

    report = run_checks(ByTheClock)
    assert bad(report) and "rises each time it is asked for" in str(report)


def test_a_policy_that_predicts_gets_estimates() -> None:
    class Predicts(Sound):
        uses_predict = True

        @hookimpl
        def chunking(self, step: Any, request: Request) -> int:
            most = min(request.num_pending, step.budget)
            return most if step.predict_s(request, most) < 0.0012 else 1

    assert bad(run_checks(Predicts)) == []


def test_a_policy_that_never_cuts_passes() -> None:
    class Whole(Sound):
        chunks = False

        @hookimpl
        def chunking(self, step: Any, request: Request) -> int:
            return request.num_pending if request.num_pending <= step.budget else 0

    assert bad(run_checks(Whole)) == []


# What it leaves behind ----------------------------------------------------------------------------------------


def test_global_chance_and_clocks_are_as_before() -> None:
    random.seed(8)
    expected = random.Random(8).random()
    clock = time.time
    run_checks(GlobalChance, checks=["deterministic"])
    assert random.random() == expected and time.time is clock


def test_the_kit_needs_no_pytest_and_no_torch() -> None:
    code = (
        "import sys, batchwright.testing as t\n"
        "assert t.check_policy('stall_free', checks=['offers']).ok\n"
        "print(sorted({'pytest', 'hypothesis', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_every_check_is_described() -> None:
    for name in CHECKS:
        assert describe(name).endswith(".") and len(describe(name)) < 120
