"""Parameters that serve a goal best: of made-up runs, whose best is known, and of the simulator."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import RequestMetric, load_workload
from batchwright.lab.designs.bounds import parse_bounds
from batchwright.lab.designs.measure import parse_measure
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.space import Space, make_spaces
from batchwright.lab.designs.tune import run_tune, tune
from batchwright.lab.designs.tune_plan import HELD_OUT, TunePlan
from batchwright.lab.designs.tune_report import config_to_use, format_tuning
from batchwright.lab.designs.tuning import Tuning
from batchwright.lab.executors import Task
from batchwright.lab.experiment import RUNS
from batchwright.lab.family import Family
from batchwright.lab.plugin_metrics import MetricSet

from .made_up import MadeUp

LOAD = load_workload("synthetic:rate=8,n=12,prompt=10,output=2,burstiness=100")
ARM = EngineConfig(policy="stall_free:chunk_size=512")
CHUNK = "policy.chunk_size=int(64,4096,log)"


# Spaces --------------------------------------------------------------------------------------------------------------


def test_spaces_are_read() -> None:
    assert Space.parse("a=int(64,2048,log)") == Space("a", "int", 64, 2048, log=True)
    assert Space.parse("a=int(0, 64, step=8)") == Space("a", "int", 0, 64, step=8)
    assert Space.parse("a=float(0.1,1e1)") == Space("a", "float", 0.1, 10)
    assert Space.parse("a=choice(x,3,true)") == Space("a", "choice", choices=("x", 3, True))
    assert Space.parse("a=512,2048") == Space("a", "choice", choices=(512, 2048))
    for text in ("a=int(64,2048,log)", "a=int(0,64,step=8)", "a=float(0.1,10)", "a=choice(x,3)"):
        assert str(Space.parse(text)) == text
    assert make_spaces({"a": "int(1,2)", "b": [1, 2]}) == (
        Space("a", "int", 1, 2),
        Space("b", "choice", choices=(1, 2)),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "--over a: write it as setting=space, as in --over 'policy.chunk_size=int(64,2048,log)'"),
        ("a=", "write it as setting=space"),
        ("a=int(64)", "'' is no number of it; expected whole numbers"),
        ("a=int(1.5,4)", "'1.5' is no number of it; expected whole numbers"),
        ("a=float(x,4)", "'x' is no number of it; expected numbers"),
        ("a=int(1,4,cubic)", "'cubic' is neither log nor step=N"),
        ("a=int(9,4)", "its range is 9 to 4; give low < high"),
        ("a=float(0,1,log)", "a logarithmic scale begins above 0, not at 0"),
        ("a=int(1,4,step=9)", "step 9 does not fit into its range"),
        ("a=int(1,4,log,step=2)", "give log or step, not both"),
        ("a=7", "there is nothing to choose from"),
        ("a=choice(7,7)", "has the value 7 twice"),
    ],
)
def test_spaces_that_cannot_be_read_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        Space.parse(text)


def test_a_space_knows_its_values() -> None:
    assert Space.parse("a=int(0,64,step=8)").holds(16) and not Space.parse("a=int(0,64,step=8)").holds(12)
    assert not Space.parse("a=int(1,4)").holds(5) and not Space.parse("a=int(1,4)").holds(2.5)
    assert Space.parse("a=float(0,1)").holds(0.3) and not Space.parse("a=float(0,1)").holds(None)
    assert Space.parse("a=1,2").holds(1) and not Space.parse("a=1,2").holds(True)


# The search ----------------------------------------------------------------------------------------------------------

pytest.importorskip("optuna", reason="the extra 'tune' is not installed")


def chunk(task: Task) -> int:
    return int(dict(task.config.policy)["chunk_size"] if isinstance(task.config.policy, dict) else 512)


def bowl(task: Task) -> float:
    """Best at 200, with noise of the seed."""
    noise = random.Random(f"{task.seed} {chunk(task)}").gauss(0, 0.01)
    return 0.5 + 0.2 * math.log2(chunk(task) / 200) ** 2 + noise


def search(ttft: Any = bowl, **options: Any) -> Tuning:
    options = {"trials": 20, "executor": MadeUp(ttft), "goal": "ttft_mean", **options}
    return tune(ARM, LOAD, [CHUNK], **options)


def closing(found: Tuning) -> str:
    """The lines below the tables, as one."""
    return " ".join(format_tuning(found, 300).partition("\n* ")[2].split())


def test_the_best_is_found_and_holds_on_fresh_seeds() -> None:
    executor = MadeUp(bowl)
    found = search(executor=executor)
    assert found.best is not None and 140 < float(str(found.best.values["policy.chunk_size"])) < 290
    assert found.trials[0].values == found.given == {"policy.chunk_size": 512} and found.default is found.trials[0]
    assert len(found.trials) == 20 and {t.seed for t in executor.tasks[:60]} == {0, 1, 2}
    held_out = executor.tasks[60:]
    assert {t.seed for t in held_out} == set(range(HELD_OUT, HELD_OUT + 5)) and len(held_out) == 10
    assert {t.arm for t in held_out} == {"as given", "tuned"}
    assert found.validation is not None and found.validation.verdict("mean_ttft_ms").words == "better"
    assert closing(found).startswith("the gain holds on fresh seeds; ttft_mean was 0.")
    assert config_to_use(found) == {"policy": {"use": "stall_free", "chunk_size": chunk_of(found)}}
    assert f"chunk_size: {chunk_of(found)}" in format_tuning(found)


def test_a_goal_that_no_table_has_is_validated_seed_by_seed() -> None:
    """A percentile that is no metric, or a share: by Student's t over the fresh seeds."""
    for goal in ("ttft_p97", "ttft_mean"):
        found = search(goal=goal)
        assert found.best is not None and closing(found).startswith("the gain holds on fresh seeds"), goal
        text = format_tuning(found, 200)
        assert re.search(rf"^{goal} .* better$", text, re.M), goal
    alone = search(goal="ttft_p97", held_out=1)
    assert "a gain is not shown on fresh seeds" in closing(alone)
    assert alone.to_json()["gain"]["words"] == "not tested"
    noise = search(lambda task: random.Random(f"{task.seed} {chunk(task)}").uniform(0.4, 0.6), goal="ttft_p97")
    assert "a gain is not shown on fresh seeds" in closing(noise)


def test_a_goal_that_differs_by_the_same_number_in_few_seeds_is_not_shown() -> None:
    """As in an A/B: two throws of a coin come out alike half the time."""

    def ttft(task: Task) -> float:
        return 0.5 + abs(chunk(task) - 200) / 1000

    for held_out, words in ((2, "no difference shown"), (6, "better")):
        assert search(ttft, goal="ttft_p97", held_out=held_out).to_json()["gain"]["words"] == words


def test_the_goal_is_the_one_metric_that_the_validation_is_about() -> None:
    found = search()
    assert found.validation is not None and found.validation.family == Family(0.95, ("mean_ttft_ms",))
    interval = found.validation.verdict("mean_ttft_ms").interval
    assert interval is not None and interval.level == pytest.approx(0.975)


def test_a_metric_of_a_plugin_is_a_goal_and_a_bound() -> None:
    own = MetricSet({"wait": RequestMetric(lambda r: (r.token_times_ns[0] - r.arrival_ns) / 1e9, better="lower")})
    for goal, slo in (("mean_wait", None), ("ttft_mean", "mean_wait<9")):
        plan = TunePlan(
            spaces=make_spaces([CHUNK]),
            goal=parse_measure(goal, "goal", own.metrics),
            bounds=() if slo is None else parse_bounds(slo, own.metrics),
            num_trials=12,
            seeds=(0,),
            held_out=(7, 8, 9),
            confidence=0.95,
            batch=1,
            seed=0,
        )
        found = run_tune(Setup({"a": ARM}, LOAD), plan, MadeUp(bowl), metrics=own)
        assert closing(found).startswith("the gain holds on fresh seeds") and found.arms == ("as given", "tuned")
        fresh = found.to_json()["fresh"]["tuned"]
        assert fresh["goal"] < 0.8 and not fresh["missed"] and fresh["edges"].keys() == ({slo} if slo else set())


def chunk_of(found: Tuning) -> int:
    assert found.best is not None
    return int(str(found.best.values["policy.chunk_size"]))


def test_of_noise_alone_the_best_looks_better_and_is_not_believed() -> None:
    """The winner's curse: the search's figure of the best trial is far below what fresh seeds say."""

    def noise(task: Task) -> float:
        return 1.0 + random.Random(f"{task.seed} {chunk(task)}").gauss(0, 0.2)

    found = search(noise, seeds=2)
    fresh, _ = found.on_fresh_seeds("tuned")
    assert found.best is not None and found.best.goal is not None and fresh is not None
    assert found.best.goal < 0.85 < fresh
    assert "a gain is not shown on fresh seeds" in closing(found)


def test_objectives_have_to_be_met() -> None:
    found = search(slo="ttft_p99<0.75")
    assert found.best is not None and found.best.met
    assert {t.met for t in found.trials} == {True, False}
    assert all((t.edges["ttft_p99<0.75"] or 9) < 0.75 for t in found.trials if t.met)
    none = search(slo="ttft_p99<0.1")
    assert none.best is None and none.config is None and none.validation is None
    assert closing(none) == "no trial met all objectives: widen the spaces, or relax the objectives"


def test_more_is_better_where_it_is() -> None:
    found = search(goal="request_throughput", trials=8)
    assert found.best is not None and found.best.goal == max(t.goal or 0 for t in found.trials)


def test_where_nothing_is_better_what_was_given_is_kept() -> None:
    found = search(lambda task: 0.5 if chunk(task) == 512 else 0.9, trials=6)
    assert found.best is found.default and found.validation is None
    assert closing(found).endswith("nothing that was tried is better than what was given: keep it")


def test_a_best_at_the_end_of_its_range_is_told_of() -> None:
    found = search(lambda task: 4096 / chunk(task), trials=25)
    if found.best is not None and found.best.values["policy.chunk_size"] == 4096:
        assert "the best policy.chunk_size is 4096, an end of its range" in closing(found)
    one = tune(ARM, LOAD, {"policy.chunk_size": "int(512,513)"}, goal="ttft_mean", trials=4, executor=MadeUp(chunk))
    assert one.best is not None and one.best.values == {"policy.chunk_size": 512}


def test_a_trial_that_fails_stops_no_other() -> None:
    def ttft(task: Task) -> float:
        if chunk(task) > 1000:
            raise ConfigError("dear me")
        return bowl(task)

    found = search(ttft)
    failed = [t for t in found.trials if t.error is not None]
    assert failed and found.best is not None and all(t.goal is None and not t.met for t in failed)
    assert f"{len(failed)} trials failed, the first with: ConfigError: dear me" in closing(found)
    with pytest.raises(ConfigError, match="all 3 trials failed; the last: ConfigError: dear me"):
        tune(ARM, LOAD, {"policy.chunk_size": "int(2000,4000)"}, goal="ttft_mean", trials=3, executor=MadeUp(ttft))


def test_it_is_a_function_of_its_seed() -> None:
    assert search(trials=8).to_json() == search(trials=8).to_json()
    assert search(trials=8).to_json() != search(trials=8, seed=7).to_json()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("most", [2, 16, 40])
def test_it_goes_on_where_it_stopped_with_the_same_bytes(tmp_path: Path, most: int, batch: int) -> None:
    """In the middle of a trial, between trials, in the middle of the validation."""
    study = tmp_path / "out" / "study.journal"
    whole = search(trials=12, batch=batch)
    before = MadeUp(bowl, most=most)
    part = search(trials=12, batch=batch, study=study, executor=before)
    assert part.was_interrupted and f"interrupted: {len(part.trials)} of 12 trials are done" in closing(part)
    after = MadeUp(bowl)
    again = search(trials=12, batch=batch, study=study, executor=after)
    assert json.dumps(again.to_json()) == json.dumps(whole.to_json())
    assert len(after.tasks) == 46 - 3 * len(part.trials) and not again.was_interrupted
    more = search(trials=15, batch=batch, study=study)
    assert len(more.trials) == 15 and more.trials[:12] == whole.trials


def test_a_study_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    search(trials=2, study=tmp_path / "study.journal")
    with pytest.raises(ConfigError, match=r"study\.journal holds a study of something else \(seeds differ\)"):
        search(trials=2, seeds=2, study=tmp_path / "study.journal")


def test_a_study_whose_trials_other_releases_made_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study.journal"
    monkeypatch.setattr("batchwright.lab.designs.tune.releases_of", lambda *_: {"torch": "2.12.0"})
    search(trials=2, study=study)
    monkeypatch.setattr("batchwright.lab.designs.tune.releases_of", lambda *_: {"torch": "2.13.0"})
    with pytest.raises(ConfigError, match=r"trials were made with others: torch 2\.12\.0, and here 2\.13\.0; go on"):
        search(trials=3, study=study)


def test_progress_counts_all_runs() -> None:
    told: list[tuple[str, int, int]] = []
    search(trials=5, progress=lambda *a: told.append(a))
    assert told == [(RUNS, n, 25) for n in range(1, 26)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"goal": "tfft_mean"}, "unknown goal 'tfft_mean'; did you mean 'ttft_mean'"),
        ({"goal": "total_input_tokens"}, "goal 'total_input_tokens' is better neither way"),
        ({"trials": 0}, "trials must be a whole number of at least 1, not 0"),
        ({"held_out": [1, 7]}, "seeds [1] are to be tuned on and to be held out"),
        ({"confidence": 0.2}, "confidence must be at least 0.5"),
        ({"over": ["rate=int(1,9)"]}, "'rate' is no setting of the arm, and tuning it would choose an easier load"),
        ({"over": ["policy.chunk=int(1,9)"]}, "unknown parameter 'chunk'"),
        ({"over": ["chunk_size=int(1,9)"]}, "axis 'chunk_size': there is no such setting"),
        ({"over": []}, "there is nothing to tune"),
        ({"over": [CHUNK, CHUNK]}, "there are two spaces of 'policy.chunk_size'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    given = {"over": [CHUNK], "goal": "ttft_mean", "trials": 2, **options}
    with pytest.raises(ConfigError, match=re.escape(words)):
        tune(ARM, LOAD, executor=MadeUp(bowl), **given)


def test_without_optuna_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'batchwright\[tune\]'"):
        search()


def test_in_the_simulator() -> None:
    found = tune(
        EngineConfig(policy="stall_free", max_num_batched_tokens=2048),
        load_workload("synthetic:rate=20,n=12,prompt=800,output=8"),
        {"policy.chunk_size": "int(64,2048,log)"},
        goal="itl_p99",
        trials=3,
        seeds=1,
        held_out=1,
    )
    assert len(found.trials) == 3 and all(t.error is None and t.goal for t in found.trials)
    assert found.best is not None
