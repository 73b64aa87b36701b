"""The workload of a command line."""

from __future__ import annotations

from dataclasses import replace

from batchwright.cli.options import WorkloadOptions
from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab import Workload, load_workload
from batchwright.lab.materialize import parse_declared
from batchwright.plugins import Plugins
from batchwright.request import SLO

SIMULATED = "synthetic:rate=20,n=200,prompt=lognormal(512,0.8),output=lognormal(128,0.6)"
REAL = "synthetic:rate=4,n=24,prompt=lognormal(64,0.6),output=uniform(8,32)"
"""Defaults: a minute of chat traffic for a simulated GPU, and a few seconds' work for a small model on a CPU."""


def make_workload(options: WorkloadOptions, backend: str, plugins: Plugins) -> Workload:
    """The workload that the options describe.

    Args:
        options: of the command line.
        backend: which will run it; it chooses the default.
        plugins: what is installed: they may bring file formats.

    Raises:
        WorkloadError: there is no such file, its format is unknown, a row is broken, or a number is out of its range.
        ConfigError: ``--slo`` is wrong.
    """
    parse_declared(options.declared_max_tokens)  # a long trace is read only for a run that can start
    slo = parse_slo(options.slo) if options.slo is not None else None
    default = SIMULATED if backend.startswith("sim:") else REAL
    workload = load_workload(
        options.workload if options.workload is not None else default,
        speedup=options.speedup,
        limit=options.limit,
        readers=plugins.workloads,
    )
    if slo is None:
        return workload
    return replace(workload, rows=tuple(row if row.slo else replace(row, slo=slo) for row in workload.rows))


def parse_slo(text: str) -> SLO:
    """``ttft=1.0,tpot=0.05`` in seconds; either may be left out.

    Raises:
        ConfigError: another name, or no number above 0.
    """
    goals: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (p.strip() for p in part.partition("="))
        if name not in ("ttft", "tpot"):
            raise ConfigError(f"--slo: unknown objective {name!r}; {did_you_mean(name, ('ttft', 'tpot'))}")
        if name in goals:
            raise ConfigError(f"--slo gives {name} twice; give it once")
        try:
            goals[name] = float(value)
        except ValueError:
            goals[name] = 0.0
        if not 0 < goals[name] < float("inf"):
            raise ConfigError(f"--slo: {name} is {value!r}; expected seconds above 0, as in ttft=1.0,tpot=0.05")
    return SLO(ttft_s=goals.get("ttft"), tpot_s=goals.get("tpot"))
