"""The predictors: what each knows, and what it says."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from batchwright import InvalidRequestError
from batchwright.engine import Engine
from batchwright.predictors.history import History
from lab.predicting import an_engine, said
from toolbox import drain, make_request

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
