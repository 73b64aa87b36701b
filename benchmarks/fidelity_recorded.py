"""The simulator beside a real backend of Batchwright: calibrated on one recorded run, it predicts another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batchwright.config import EngineConfig
from batchwright.config_sources import ConfigSources
from batchwright.errors import WorkloadError
from batchwright.lab import RunRecord, Workload, compare, load_workload, run_arm
from batchwright_backends.sim.calibrator import read_run
from judgement import Judgement, Prediction
from prediction_errors import Latencies, figures
from simulator_fit import fit_simulator

FITTED, JUDGED = RECORDED = ("a", "b")
"""Names of the two runs: the simulator is calibrated on the first and predicts the second."""

DECLARED = "exact"


def record(folder: Path, name: str, backend: str, policy: str, spec: str, sets: Sequence[str]) -> str:
    """Run a workload for real and write its records to ``FOLDER/NAME.json``; says what was done.

    Raises:
        BatchwrightError: something of it cannot be had.
    """
    sources = ConfigSources()
    sources.add_mapping({"policy": policy, "backend": backend}, "the command line")
    sources.add_set(sets)
    run = run_arm(sources.build(), load_workload(spec), arm=name, declared=DECLARED)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    compare([run]).write_json(path)
    finished = sum(r.status == "finished" for r in run.requests)
    return f"{path}: {finished} of {len(run.requests)} requests in {run.duration_s:.1f} s, {len(run.steps)} steps"


def judge_recorded(folder: Path, scratch: Path) -> Judgement:
    """Calibrate on ``a.json`` and predict ``b.json``.

    Args:
        folder: where they are.
        scratch: a folder for the machine that is fitted.

    Raises:
        BatchwrightError: a file is missing or no record, or the simulator cannot be fitted to it.
    """
    fitted, judged = (_read(folder, name) for name in RECORDED)
    for run in (fitted, judged):
        if any(r.status != "finished" for r in run.requests):
            raise WorkloadError(f"run {run.arm!r} has requests that did not finish; record it again")
    fit = fit_simulator(folder / f"{FITTED}.json", None, scratch / "recorded.yaml")
    predicted = run_arm(config_of(judged, f"sim:{fit.target}"), workload_of(judged), arm=JUDGED, declared=DECLARED)
    found = figures(Latencies.of_run(judged), Latencies.of_run(predicted))
    prediction = Prediction("calibrated", predicted.backend, fit.said, found)
    title = f"{judged.backend}, {judged.policy}, {_about(judged)}; calibrated on {_about(fitted)}"
    return Judgement(title, [prediction], [f"extrapolated: {line}" for line in fit.extrapolates])


def _read(folder: Path, name: str) -> RunRecord:
    path = folder / f"{name}.json"
    if not path.is_file():
        raise WorkloadError(
            f"{folder} is no folder of runs: it has neither meta.json and requests.jsonl of a real vLLM run, nor "
            f"{name}.json, which --record {name} makes"
        )
    return read_run(path)


def config_of(run: RunRecord, backend: str) -> EngineConfig:
    """Settings of an engine that decides as a recorded one did, on another backend."""
    limits = run.limits
    cache = "prefix_cache."
    return EngineConfig.parse(
        {
            "policy": run.settings["policy"],
            "backend": backend,
            "prefix_cache": {n.removeprefix(cache): v for n, v in run.settings.items() if n.startswith(cache)},
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_num_residents": limits.max_num_residents,
            "max_model_len": limits.max_model_len,
            "num_blocks": limits.num_blocks,
            "block_size": limits.block_size,
        },
        f"settings of run {run.arm!r}",
    )


def workload_of(run: RunRecord) -> Workload:
    """What a recorded run was offered.

    Raises:
        WorkloadError: its source is not there, or is not what it was.
    """
    about = run.workload
    workload = load_workload(about["source"], speedup=about["speedup"])
    if workload.hash != about["hash"]:
        raise WorkloadError(f"{about['source']} is not the workload of run {run.arm!r} any more: record it again")
    return workload


def _about(run: RunRecord) -> str:
    return f"{run.workload['name']} ({len(run.requests)} requests, {run.duration_s:.0f} s)"
