"""The simulator beside a real vLLM run: constants from kernel tables alone, then the host fitted to the log."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from batchwright.errors import ConfigError
from batchwright.lab import run_arm
from batchwright_backends.sim.gpus import Gpu, find_gpu, gpu_names
from batchwright_backends.sim.shared_prefixes import FILE
from batchwright_backends.sim.target import parse_target
from judgement import Judgement, Prediction
from prediction_errors import Latencies, figures, with_spread
from real_run import LOG, META, TABLES, RealRun, read_meta, read_real_run
from shared_prefixes import KNOWN
from simulator_fit import fit_simulator

UNCALIBRATED, CALIBRATED = "uncalibrated", "calibrated"
NUM_NOISY, NOISE, JITTER_NS = 20, 0.02, 15_000_000
"""Replays with noise: in the logarithm of each step's time, and in when the scheduler sees a request.

The log says when requests were queued, which vLLM does between two steps; how far apart steps are is not known before.
"""


def judge_vllm(
    folder: Path,
    scratch: Path,
    *,
    gpu: str | None = None,
    model: str | None = None,
    fit: bool = False,
    tune: bool = True,
    num_noisy: int = NUM_NOISY,
) -> Judgement:
    """Replay the run of a folder.

    Args:
        folder: see ``real_run.py``.
        scratch: a folder for machines that are fitted.
        gpu: name of the catalogue; None: found by the name that the driver gave.
        model: name or path; None: as the run names it.
        fit: fit the folder's kernel tables even where the catalogue has constants of this GPU.
        tune: fit the host's time to the log as well, for a second prediction.
        num_noisy: replays with noise, which show how far chance alone moves each figure.

    Raises:
        BatchwrightError: something of it is missing, broken or unknown.
    """
    name, folder = folder.name, with_prefixes(folder, scratch)
    run = read_real_run(folder)
    base = gpu if gpu is not None else known_gpu(run.device)
    tp = f"x{run.tensor_parallel}" if run.tensor_parallel > 1 else ""
    target = f"{model if model is not None else run.model}@{base}{tp}"
    tables = (fit or find_gpu(base).uncalibrated) and run.has_tables
    if tables:
        fit_of_tables = fit_simulator(folder, target, scratch / "tables.yaml")
        target = fit_of_tables.target
        said = [*fit_of_tables.said, _host(parse_target(target).gpu, run)]
    else:
        one = find_gpu(base)
        said = [f"dense layers and attention: {one.gemm.source or 'unknown'}", _host(one, run)]
    predictions = [_predict(UNCALIBRATED, run, target, said, num_noisy)]
    if tune:
        log = fit_simulator(folder / LOG, target, scratch / "log.yaml")
        tuned = "so this column is tuned on the run that it is held to"
        predictions.append(_predict(CALIBRATED, run, log.target, [*log.said, tuned], num_noisy))
    return Judgement(f"{name}: {run}", predictions, _notes(run))


def with_prefixes(folder: Path, scratch: Path) -> Path:
    """The folder itself, or a copy with what its prompts share, where that is known of its dataset.

    Raises:
        WorkloadError: its ``meta.json`` is missing or broken.
    """
    known = {
        json.loads(file.read_text(encoding="utf-8"))["dataset_hash"]: file for file in sorted(KNOWN.glob("*.json"))
    }
    file = known.get(str(read_meta(folder).get("dataset_hash")))
    if file is None or (folder / FILE).is_file():
        return folder
    copy = scratch / folder.name
    copy.mkdir()
    for name in (LOG, META, *TABLES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, copy / name)
    shutil.copyfile(file, copy / FILE)
    return copy


def known_gpu(device: str) -> str:
    """The catalogue's name of a GPU, from that of its driver: the longest that is part of it.

    Raises:
        ConfigError: none is.
    """
    plain = "".join(c for c in device.lower() if c.isalnum())
    found = [name for name in gpu_names() if name.replace("-", "") in plain]
    if not found:
        raise ConfigError(f"the simulator knows no {device}; say which it is like with --gpu: {', '.join(gpu_names())}")
    return max(found, key=len)


def _host(gpu: Gpu, run: RealRun) -> str:
    host = gpu.host
    hidden = "" if run.async_scheduling else "; vLLM ran without async scheduling, so its host takes more than that"
    figures = f"{1e3 * host.step_s:g} ms a step, {1e6 * host.request_s:g} µs a request of it"
    return f"host: {figures}: {host.source or 'of the GPU file'}{hidden}"


def _predict(name: str, run: RealRun, target: str, fitted_on: list[str], num_noisy: int) -> Prediction:
    backend = f"sim:{target}"
    measured = Latencies.of_log(run.log)
    found = figures(measured, _replay(run, backend))
    noisy = [figures(measured, _replay(run, backend, seed)) for seed in range(num_noisy)]
    return Prediction(name, backend, fitted_on, with_spread(found, noisy) if noisy else found)


def _replay(run: RealRun, backend: str, seed: int | None = None) -> Latencies:
    """One replay; with noise of this seed, or None: without."""
    workload, options = run.log.workload, {}
    if seed is not None:
        options = {"noise": NOISE, "noise_seed": seed}
        moved = np.random.default_rng(seed).integers(-JITTER_NS, JITTER_NS + 1, size=len(workload)).tolist()
        rows = [
            replace(row, arrival_ns=max(0, row.arrival_ns + by)) for row, by in zip(workload.rows, moved, strict=True)
        ]
        workload = replace(workload, rows=tuple(sorted(rows, key=lambda row: row.arrival_ns)))
    # Lengths are known to nobody who decides: vllm_v1 does not read max_tokens.
    return Latencies.of_run(run_arm(run.config(backend, options), workload, declared="exact"))


def _notes(run: RealRun) -> list[str]:
    shared = run.log.prefixes
    notes = [
        "no two prompts are taken to share a prefix: the log has lengths, not tokens"
        if shared is None
        else f"{len(shared.shared)} prompts begin like an earlier one: {shared.source}",
        "times are the engine's: from the moment its scheduler queued a request to that at which it had a token; the "
        "server's own work before and behind is not in them",
    ]
    if run.async_scheduling:
        notes.append(
            "vLLM scheduled each step while the one before it ran, so a newcomer waited for up to one step more "
            "than in the simulator, which schedules when a step has ended"
        )
    return notes
