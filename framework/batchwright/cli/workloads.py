"""The workload of a command line."""

from __future__ import annotations

from dataclasses import replace

from batchwright.cli.options import ShapeOptions, WorkloadOptions
from batchwright.errors import ConfigError, WorkloadError, did_you_mean
from batchwright.lab import (
    ArrivalSpec,
    Workload,
    by_length,
    load_workload,
    waiting_turns,
    with_arrivals,
    with_rules,
)
from batchwright.lab.materialize import parse_declared
from batchwright.lab.row_rules import read_rules
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
    if options.think is not None and options.concurrency is None:
        raise WorkloadError("--think passes between two requests of a user; give --concurrency as well")
    default = SIMULATED if backend.startswith("sim:") else REAL
    workload = shaped(options.workload if options.workload is not None else default, options, plugins)
    if slo is not None:
        workload = workload.with_slo(slo)
    workload = replace(workload, too_long=options.too_long)
    if options.concurrency is None:
        return workload
    return workload.closed(options.concurrency, options.think)


def shaped(spec: str, options: ShapeOptions, plugins: Plugins) -> Workload:
    """A workload that is read or drawn, and what the options make of it, in the order in which they are listed.

    Raises:
        WorkloadError: see ``make_workload``.
    """
    if options.rate is not None and options.speedup != 1.0:
        raise WorkloadError("--rate and --speedup both stretch arrival times: give one of them")
    window = _window(options.window) if options.window is not None else None
    arrivals = ArrivalSpec.parse(options.arrivals) if options.arrivals is not None else None
    rules = read_rules(options.rule or ())
    workload = load_workload(spec, readers=plugins.workloads, skip_bad_rows=options.skip_bad_rows)
    if window is not None:
        workload = workload.window(*window)
    workload = workload.from_row(options.skip)
    if options.limit is not None:
        workload = workload.first(options.limit)
    if options.chars_per_token is not None:
        workload = by_length(workload, options.chars_per_token)
    if options.wait_turns is not None:
        workload = waiting_turns(workload, _think(options.wait_turns))
    if arrivals is not None:
        workload = with_arrivals(workload, arrivals)
    workload = with_rules(workload, rules)
    return workload.faster(options.speedup) if options.rate is None else workload.at_rate(options.rate)


def _window(text: str) -> tuple[float, float]:
    begin, colon, end = text.partition(":")
    try:
        return float(begin or 0), float(end or "inf") if colon else float("nan")
    except ValueError:
        return float("nan"), float("nan")


def _think(text: str) -> float | None:
    if text == "trace":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise WorkloadError(f"--wait-turns is {text!r}; expected seconds of at least 0, or trace")
    return seconds


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
