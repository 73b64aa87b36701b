"""Who is asked for a prediction, when, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import EngineConfig, Policy, PolicyError, Predictor, RefusedRequestError, Request, Step, hookimpl
from batchwright.backend import RealClock
from batchwright.engine import Engine
from fake_backend import FakeBackend
from lab.predicting import Guesser, an_engine
from toolbox import make_engine, make_request, play

# The hook ---------------------------------------------------------------------------------------------------------


class Asked(Predictor):
    """Counts."""

    def __init__(self, params: Any = None, **values: Any) -> None:
        super().__init__(params, **values)
        self.asked: list[str] = []

    def predict(self, request: Request) -> int | None:
        self.asked.append(request.request_id)
        return None if request.request_id == "declined" else 5


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
