"""Tables of the simulator: what it knows, how well it predicts, and how fast it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from batchwright_backends.sim.backend import SimOptions
from batchwright_backends.sim.gpus import find_gpu, gpu_names
from batchwright_backends.sim.models import model_names
from table_makers.committed import results
from table_makers.markdown import code, seconds, table


def gpus() -> str:
    """The simulator's GPUs and where their constants are from."""
    rows = []
    for name in gpu_names():
        gpu = find_gpu(name)
        kernels = "datasheet times generic efficiencies: uncalibrated" if gpu.uncalibrated else gpu.gemm.source
        rows.append((code(name), gpu.title, kernels))
    return table(("name", "GPU", "constants of dense layers from"), rows)


def residuals() -> str:
    """What the fits left on rows they did not see."""
    rows = []
    for name in gpu_names():
        gpu = find_gpu(name)
        if not gpu.uncalibrated:
            for term in (gpu.gemm, gpu.decode_attention, gpu.chunk_attention):
                for part in term.residual.removeprefix("held-out rows, ").split("; "):
                    regime, _, figures = part.partition(": ")
                    rows.append((code(name), regime, figures))
    return table(("GPU", "regime", "error on held-out rows"), rows)


def models() -> str:
    """The simulator's models."""
    text = (Path(inspect.getfile(SimOptions)).parent / "data" / "models.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    rows = [(code(name), entries[name]["source"]) for name in model_names()]
    return table(("name", "shape from"), rows)


def fidelity(name: str, heads: Mapping[str, str]) -> str:
    """The committed figures of ``benchmarks/fidelity.py``: one measured run, and each prediction's error.

    Args:
        name: of the file.
        heads: of the columns, by the prediction's name.
    """
    (run,) = results(name)["runs"]
    predictions = run["predictions"]

    def cells(row: Mapping[str, Any]) -> list[str]:
        said = [seconds(row["predicted_s"]), f"{100 * row['error']:+.1f}%"]
        if "least_error" in predictions[0]["figures"][0]:
            said.append(f"{100 * row['least_error']:+.1f} to {100 * row['largest_error']:+.1f}")
        return said

    rows = [
        [row[0]["figure"], seconds(row[0]["measured_s"]), *(cell for one in row for cell in cells(one))]
        for row in zip(*(p["figures"] for p in predictions), strict=True)
    ]
    columns = [(heads[p["name"]], "error", "with noise")[: len(cells(p["figures"][0]))] for p in predictions]
    return table(("", "measured", *(head for column in columns for head in column)), rows)


def agreement_on_cpu() -> str:
    """The committed figures of ``benchmarks/agree_cpu.py``."""

    def said(one: Mapping[str, Any]) -> str:
        return f"{100 * one['relative']:+.0f}% ({100 * one['low']:+.0f} to {100 * one['high']:+.0f})"

    rows = [
        [
            f"{code(row['other'])} against {code(row['base'])}",
            code(row["metric"]),
            said(row["simulated"]),
            "; ".join(said(one) for one in row["real"]),
            "agrees" if row["holds"] else ", ".join(row["signs"]),
        ]
        for row in results("agree_cpu")["rows"]
    ]
    return table(("pair", "metric", "simulated", "SmolLM2 on the CPU, round by round", "sign"), rows)


def _sim_speed_rows(unit: str) -> list[Mapping[str, Any]]:
    """The committed figures of ``benchmarks/sim_speed.py``."""
    figures = results("sim_speed")
    return [row for row in figures["rows"] if row["unit"] == unit]


def sim_speed() -> str:
    """Requests a second, beside DynoSim."""
    rows = []
    for row in _sim_speed_rows("requests/s"):
        medians, ratios = row["medians"], row["ratios"]
        rows.append(
            [
                row["row"],
                f"{row['num_steps']:,}",
                f"{row['mean_batch']:.0f}",
                f"{medians['step by step']:,.0f}",
                f"{medians['with leaps']:,.0f}",
                f"{row['share_leapt']:.0%}",
                f"{medians['dynosim']:,.0f}",
                f"{ratios['step by step/dynosim']:.2f}",
                f"{ratios['with leaps/dynosim']:.2f}",
            ]
        )
    heads = ("arrivals", "steps", "decodes a step", "step by step", "with leaps", "steps leapt", "DynoSim")
    return table((*heads, "step by step / its", "with leaps / its"), rows)


def sim_growth() -> str:
    """Cost of a request and memory, by number of requests."""
    rows = [
        [row["row"], f"{row['medians']['a request']:.0f} µs", f"{row['seconds']:.0f} s", f"{row['peak_mib']:.0f} MiB"]
        for row in _sim_speed_rows("µs")
    ]
    return table(("requests", "a request", "all", "memory at the peak"), rows)
