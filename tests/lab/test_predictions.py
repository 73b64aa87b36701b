"""Predicted lengths as a setting, and what prediction error costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError, EngineConfig, PluginError, Predictor, PredictorParams, Request
from batchwright.config_sources import ConfigSources
from batchwright.lab import Comparison, ab, format_report, load_workload, run_arm
from batchwright.lab.run_record import RunRecord
from batchwright.resolve import resolve_predictor
from lab.predicting import said
from toolbox import make_request

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


HEAVY = "synthetic:rate=40,n=200,prompt=64,output=lognormal(40,1.4,1000),seed=3"
"""Nine answers of ten are short, a few are a thousand tokens long; more come than run at once."""


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
