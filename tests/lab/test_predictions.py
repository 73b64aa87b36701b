"""Predicted lengths: who is asked, what each predictor knows, what it costs, and what prediction error costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchwright import (
    ConfigError,
    EngineConfig,
    InvalidRequestError,
    PluginError,
    Policy,
    PolicyError,
    Predictor,
    PredictorParams,
    Refusal,
    RefusedRequestError,
    Request,
    Step,
    hookimpl,
)
from batchwright.backend import RealClock
from batchwright.config_sources import ConfigSources
from batchwright.engine import Engine
from batchwright.lab import Comparison, ab, format_report, load_workload, run_arm
from batchwright.lab.run_record import RunRecord
from batchwright.predictors.history import History
from batchwright.resolve import resolve_predictor
from fake_backend import FakeBackend
from toolbox import drain, make_engine, make_request, play

HEAVY = "synthetic:rate=40,n=200,prompt=64,output=lognormal(40,1.4,1000),seed=3"
"""Nine answers of ten are short, a few are a thousand tokens long; more come than run at once."""


def an_engine(predict: Any, policy: Any = "prefill_first", **config: Any) -> Any:
    return make_engine(policy, predict=predict, **config)


def said(predict: Any, lengths: Mapping[str, int], **fields: Any) -> dict[str, int | None]:
    """What is predicted of requests that really run so long."""
    engine, tape = an_engine(predict)
    for name, length in lengths.items():
        engine.add_request(make_request(name, 4, 900, **fields), num_output_tokens=length)
    return {name: request.predicted_output_tokens for name, request in tape.requests.items()}


# Oracle and noisy -------------------------------------------------------------------------------------------------


def test_an_oracle_says_the_true_length_as_max_tokens_cuts_it() -> None:
    assert said("oracle", {"a": 7, "b": 900, "c": 2000}) == {"a": 7, "b": 900, "c": 900}


def test_whoever_brings_a_prediction_keeps_it() -> None:
    assert said("oracle", {"a": 7}, predicted_output_tokens=3) == {"a": 3}


@pytest.mark.parametrize("predict", ["oracle", "noisy"])
def test_an_oracle_works_only_where_true_lengths_are_handed_over(predict: str) -> None:
    engine, tape = an_engine(predict)
    with pytest.raises(InvalidRequestError, match=r"request 'a': .* really runs, and nobody knows that .* \(history\)"):
        engine.add_request(make_request("a", 4, 9))
    engine.add_request(make_request("b", 4, 9, predicted_output_tokens=3))  # not asked
    engine.add_request(make_request("c", 4, 9), num_output_tokens=2)
    assert list(tape.requests) == ["b", "c"] and engine.predictor.true_length is None


def test_noise_is_log_normal_with_the_size_asked_for() -> None:
    names = {f"r{k}": 500 for k in range(400)}
    for tau in (0.25, 1.0):
        logs = [math.log((n or 0) / 500) for n in said(f"noisy:tau={tau}", names).values()]
        assert statistics.stdev(logs) == pytest.approx(tau, rel=0.1)
        assert statistics.median(logs) == pytest.approx(0, abs=0.15 * tau)
    assert set(said("noisy:tau=0", names).values()) == {500}


def test_noise_depends_on_seed_and_request_only_and_grows_with_tau() -> None:
    lengths = {f"r{k}": 300 + k for k in range(50)}
    one = said("noisy:tau=1", lengths)
    assert one == said("noisy:tau=1", dict(reversed(lengths.items())))
    assert one != said("noisy:tau=1,seed=5", lengths)
    two = said("noisy:tau=2", lengths)
    assert all(
        abs(math.log((one[n] or 0) / lengths[n])) <= abs(math.log((two[n] or 0) / lengths[n])) + 0.1 for n in one
    )
    assert min(n or 0 for n in said("noisy:tau=50", lengths).values()) == 1  # at least a token, however wrong


# History ----------------------------------------------------------------------------------------------------------


def finished(predictor: History, *lengths: int, client: str | None = "a", reason: str = "trace", **fields: Any) -> None:
    for length in lengths:
        request = make_request("x", 1, 99, client_id=client, **fields)
        request._known.extend([1] * length)
        predictor.request_finished(request, reason)


def asked(predictor: History, client: str | None = "a", **fields: Any) -> int | None:
    return predictor.predict_output(make_request("q", 1, 99, client_id=client, **fields))


def test_history_is_the_median_or_mean_of_the_clients_last_answers() -> None:
    for statistic, expected in (("median", 20), ("mean", 43)):
        history = History(statistic=statistic)
        finished(history, 10, 20)
        assert asked(history) is None  # too few
        finished(history, 100)
        assert asked(history) == expected
    history = History(window=3)
    finished(history, 1, 1, 1, 50, 60, 70)
    assert asked(history) == 60  # only the last three


def test_history_of_a_stranger_is_everybodys() -> None:
    history = History()
    finished(history, 10, 11, 12, client="a")
    finished(history, 90, client="b")
    assert (asked(history, "a"), asked(history, "b"), asked(history, None)) == (11, 12, 12)
    everybody = History(by="all")
    finished(everybody, 10, 90, 91, client="a")
    assert asked(everybody, "a") == asked(everybody, "b") == 90
    programs = History(by="program")
    finished(programs, 5, 5, 5, client="a", program_id="p")
    finished(programs, 70, 70, 70, client="a", program_id="q")
    assert asked(programs, "a", program_id="p") == 5 and asked(programs, "a", program_id="q") == 70


def test_history_learns_nothing_from_what_did_not_end_by_itself() -> None:
    history = History(enough=1)
    finished(history, 50, reason="abort")
    finished(history, 60, reason="error")
    assert asked(history) is None
    finished(history, 7, reason="stop")
    assert asked(history) == 7


def test_history_remembers_a_bounded_number_of_clients() -> None:
    history = History(remembered=2, enough=1)
    for client, length in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
        finished(history, length, client=client)
    assert set(history._groups) == {"a", "c"}


def test_history_never_peeks() -> None:
    """Two workloads whose true lengths differ from the tenth request on: it knows only once one of those has ended."""
    seen, later = [], []
    for factor in (1, 9):
        engine, tape = an_engine("history:window=10", T=1024)

        def add(numbers: range, factor: int, engine: Engine = engine) -> None:
            for k in numbers:
                engine.add_request(make_request(f"r{k}", 4, 300), num_output_tokens=factor * (5 + k))

        add(range(10), 1)
        drain(engine)
        add(range(10, 20), factor)
        seen.append([r.predicted_output_tokens for r in tape.requests.values()])
        drain(engine)
        add(range(20, 21), 1)
        later.append(tape.requests["r20"].predicted_output_tokens)
    assert seen[0] == seen[1] and seen[0][:10] == [None] * 10 and seen[0][10:] == [10] * 10
    assert later == [20, 180]


# The hook ---------------------------------------------------------------------------------------------------------


class Asked(Predictor):
    """Counts."""

    def __init__(self, params: Any = None, **values: Any) -> None:
        super().__init__(params, **values)
        self.asked: list[str] = []

    def predict(self, request: Request) -> int | None:
        self.asked.append(request.request_id)
        return None if request.request_id == "declined" else 5


class Guesser(Policy):
    """A policy that predicts, and refuses what it expects to be long."""

    @hookimpl
    def predict_output(self, request: Request) -> int | None:
        return request.max_tokens

    @hookimpl
    def arrival(self, request: Request) -> Any:
        return True if (request.predicted_output_tokens or 0) < 50 else Refusal("it will be long")


def engine_with(predictor: Predictor, policy: Policy | None = None, **config: Any) -> Any:
    class Registers:
        name = "mine"

        @hookimpl
        def predict_output(self, request: Request) -> int | None:
            return predictor.predict_output(request)

    return make_engine(policy if policy is not None else "prefill_first", plugins=[Registers()], **config)


def test_it_is_asked_once_however_often_a_request_is_evicted() -> None:
    predictor = Asked()
    engine, tape = engine_with(predictor, P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert tape.preemptions() and predictor.asked == ["0", "1", "2", "3"]


def test_a_predictor_is_asked_before_the_policy_and_may_decline() -> None:
    engine, tape = engine_with(Asked(), Guesser())
    engine.add_request(make_request("a", 4, 9))
    engine.add_request(make_request("declined", 4, 9))
    assert [r.predicted_output_tokens for r in tape.requests.values()] == [5, 9]
    with pytest.raises(RefusedRequestError, match="it will be long"):  # arrival reads the prediction
        make_engine(Guesser())[0].add_request(make_request("b", 4, 60))


@pytest.mark.parametrize(("answer", "rule"), [(-1, "range"), (2.5, "type"), (True, "type"), (OSError("x"), "raised")])
def test_a_wrong_answer_is_the_plugins_fault(answer: Any, rule: str) -> None:
    class Wrong:
        name = "wrong"

        @hookimpl
        def predict_output(self, request: Request) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    engine, _ = make_engine(plugins=[Wrong()])
    with pytest.raises(PolicyError, match=r"request 'a'|it raised OSError: x") as caught:
        engine.add_request(make_request("a", 4, 3))
    assert (caught.value.plugin, caught.value.hook, caught.value.rule) == ("wrong", "predict_output", rule)
    assert not engine.has_unfinished()
    engine, tape = make_engine(plugins=[Wrong()], on_policy_error="fallback")
    play(engine, [make_request("a", 4, 3)])
    assert tape.requests["a"].predicted_output_tokens is None
    assert engine.scheduler.num_policy_faults == 1 and tape.events("policy_fault")[0]["hook"] == "predict_output"


def test_a_stationary_policy_stays_so_beside_a_predictor() -> None:
    calls = []

    class Counts(Policy):
        stationary = True

        @hookimpl
        def admission(self, step: Step) -> Any:
            calls.append(step.index)
            yield step.running
            yield list(step.waiting)

    for predict in (None, "oracle"):
        calls.clear()
        backend = FakeBackend()
        engine = Engine(EngineConfig(predict=predict), backend=backend, policy=Counts())
        engine.add_request(make_request("a", 4, 20), num_output_tokens=20)
        while engine.has_unfinished():
            engine.step()
        assert len(calls) < 5, "asked in every step, though nothing changes"


def test_a_predictor_that_says_nothing_is_told_so() -> None:
    with pytest.raises(NotImplementedError, match="must say predict"):
        Predictor().predict(make_request("a", 1, 1))


# Cost -------------------------------------------------------------------------------------------------------------


def test_its_cost_is_charged_to_a_virtual_clock() -> None:
    engine, tape = an_engine("oracle:cost_s=0.25")
    engine.add_request(make_request("a", 4, 2), num_output_tokens=2)
    assert engine.clock.now_ns() == 250_000_000
    engine.add_request(make_request("b", 4, 2, predicted_output_tokens=1), num_output_tokens=2)
    assert engine.clock.now_ns() == 250_000_000  # nobody was asked
    engine.step()
    assert tape.requests["a"].first_token_ns == 251_000_000


def test_a_refused_request_was_predicted_all_the_same() -> None:
    engine, _ = make_engine(Guesser(), predict="noisy:cost_s=0.5,tau=0")
    with pytest.raises(RefusedRequestError):
        engine.add_request(make_request("a", 4, 90), num_output_tokens=80)
    assert engine.clock.now_ns() == 500_000_000


def test_a_measured_cost_is_what_the_call_took(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_000, 8_000])
    monkeypatch.setattr("batchwright.predictor.time.perf_counter_ns", lambda: next(times))
    engine, _ = an_engine("oracle:cost_s=measured")
    engine.add_request(make_request("a", 4, 2), num_output_tokens=2)
    assert engine.clock.now_ns() == 7_000


def test_a_real_clock_is_charged_nothing() -> None:
    class Real(FakeBackend):
        def __init__(self) -> None:
            super().__init__()
            self.clock = RealClock()  # type: ignore[assignment]

    engine, _ = an_engine("oracle:cost_s=3600", backend=Real())
    engine.add_request(make_request("a", 4, 2), num_output_tokens=2)
    assert engine.clock.now_ns() < 3600e9


# By config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nosy", r"predict: unknown predictor 'nosy'; did you mean 'noisy'\?"),
        ({"tau": 1}, "predict: use must name a predictor, not None; as in predict: {use: noisy, tau: 0.5}"),
        ("noisy:tau=-1", "predictor Noisy: parameter 'tau' is -1"),
        ("noisy:tua=1", r"predictor Noisy: unknown parameter 'tua'; did you mean 'tau'\?"),
        ("oracle:cost_s=soon", "predictor Oracle: parameter 'cost_s"),
        ("gone.py:Mine", "predictor 'gone.py:Mine': there is no file gone.py"),
    ],
)
def test_what_cannot_predict_is_refused(spec: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_predictor(spec)


def test_a_predictor_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from batchwright import Predictor, hookimpl\n"
        "class Mine(Predictor):\n    def predict(self, request):\n        return 4\n"
        "class Wrong(Predictor):\n    @hookimpl\n    def predict_outputs(self, request): ...\n"
    )
    assert said(f"{file}:Mine", {"a": 7}) == {"a": 4}
    with pytest.raises(PluginError, match=r"no such hook; did you mean 'predict_output'"):
        resolve_predictor(f"{file}:Wrong")
    with pytest.raises(ConfigError, match=r"has no predictor class 'Mein'; did you mean 'Mine'\?"):
        resolve_predictor(f"{file}:Mein")


def test_set_gives_one_parameter_or_another_predictor() -> None:
    sources = ConfigSources()
    sources.add_mapping({"predict": {"use": "noisy", "tau": 2.0, "seed": 4}}, "a file")
    sources.add_set(["predict.tau=0.5"])
    assert sources.build().predict == {"use": "noisy", "tau": 0.5, "seed": 4}
    sources.add_set(["predict=history"])
    assert sources.build().predict == "history"
    sources.add_set(["predict.by=program"])
    assert sources.build().predict == {"use": "history", "by": "program"}
    sources.add_mapping({"predict": {"use": "oracle"}}, "an arm")
    assert sources.build().predict == {"use": "oracle"}
    fresh = ConfigSources()
    fresh.add_set(["predict.use=noisy", "predict.tau=1"])
    assert fresh.build().predict == {"use": "noisy", "tau": 1}


# As an experiment's parameter -------------------------------------------------------------------------------------


def arms(**predictors: str | None) -> dict[str, EngineConfig]:
    base: dict[str, Any] = {"max_num_seqs": 8, "max_num_residents": 8}
    return {
        "fifo": EngineConfig(policy="vllm_v1", **base),
        **{n: EngineConfig(policy={"use": "srpt", "ageing": 0.0}, predict=p, **base) for n, p in predictors.items()},
    }


@pytest.fixture(scope="module")
def degrading() -> Comparison:
    return ab(
        arms(oracle="oracle", small="noisy:tau=0.5", medium="noisy:tau=1", large="noisy:tau=2", useless="noisy:tau=6"),
        load_workload(HEAVY),
    )


def test_srpt_degrades_smoothly_with_the_error_of_predictions(degrading: Comparison) -> None:
    mean = {name: float(summary["mean_e2el_ms"] or 0) for name, summary in degrading.summaries.items()}
    assert mean["oracle"] < mean["small"] < mean["medium"] < mean["large"] < mean["useless"]
    assert mean["small"] < 1.15 * mean["oracle"] and mean["large"] < 0.75 * mean["fifo"]
    assert 0.75 * mean["fifo"] < mean["useless"] < 1.1 * mean["fifo"], "with little information it is about FIFO"


def test_the_header_says_that_an_oracle_was_in_use(degrading: Comparison) -> None:
    report = " ".join(format_report(degrading, 200).split())
    assert "fifo: none; oracle: oracle, an oracle: told the true lengths; small: noisy, an oracle:" in report
    assert "large: noisy (tau=2.0), an oracle: told the true lengths" in report
    assert "predict.tau none none 0.5 1.0 2.0 6.0" in report


def record_of(predict: str | None, rows: str = HEAVY) -> RunRecord:
    return run_arm(EngineConfig(predict=predict, max_num_seqs=8), load_workload(rows, limit=20))


def test_records_say_who_predicted(tmp_path: Path) -> None:
    assert record_of(None).predictions == "none" and "predicted" not in format_report(ab(arms(), load_workload(HEAVY)))
    assert record_of("history").predictions == "history"
    record = record_of("oracle")
    assert record.predictions == "oracle, an oracle: told the true lengths"
    assert record.settings["predict"] == {"use": "oracle", "cost_s": 0.0}
    assert RunRecord.from_json(record.to_json()).predictions == record.predictions
    older = record.to_json()
    del older["predictions"]
    assert RunRecord.from_json(older).predictions == "none"
    row = '{"arrival_s": 0, "num_prompt_tokens": 5, "num_output_tokens": 3'
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{row}, "predicted_output_tokens": 3}}\n{row}}}\n')
    assert record_of(None, str(file)).predictions == "by 1 of 2 rows"
    assert record_of("history", str(file)).predictions == "by 1 of 2 rows, the others history"
    file.write_text(f'{row}, "predicted_output_tokens": 3}}\n')
    assert record_of(None, str(file)).predictions == "by the workload's rows"


def test_equal_runs_are_equal_and_a_cost_is_seen_in_them() -> None:
    once, again = record_of("noisy:cost_s=0.01"), record_of("noisy:cost_s=0.01")
    assert once.to_json() == again.to_json()
    free = record_of("noisy")
    assert once.duration_ns > free.duration_ns + 20 * 10_000_000 // 2


def test_a_predictor_of_ones_own_has_its_own_parameters() -> None:
    class MineParams(PredictorParams):
        share: float = 0.5

    class Mine(Predictor):
        Params = MineParams

        def predict(self, request: Request) -> int | None:
            return int(self.params.share * request.max_tokens)

    mine = Mine(share=0.25, cost_s=1.5)
    assert mine.predict_output(make_request("a", 1, 100)) == 25
    assert mine.take_spent_ns() == 1_500_000_000 and mine.take_spent_ns() == 0
    assert mine.describe("mine") == {"use": "mine", "cost_s": 1.5, "share": 0.25}
