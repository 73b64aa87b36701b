"""``batchwright calibrate``: fit a simulator to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.options import Debug, NoPlugin

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright.calibration import CalibrationReport


def calibrate(
    source: Annotated[list[Path], typer.Argument(metavar="SOURCE", help="What was measured: a folder or files.")],
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="MACHINE", help="Where the fit starts: MODEL@GPU[xTP] or FILE.yaml."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the machine, for --backend sim:FILE (.yaml).")
    ] = None,
    files: Annotated[
        str, typer.Option("--files", metavar="PREFIX", help="Take only tables whose names begin with it, as h100_.")
    ] = "",
    max_kv_tokens: Annotated[
        int | None,
        typer.Option("--max-kv-tokens", metavar="N", help="Leave out attention rows that read more tokens than N."),
    ] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", metavar="NAME", help="Of files with several runs, the only one to take.")
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="The policy with which a request log is replayed.")
    ] = "vllm_v1",
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="The backend to fit, where it is not the simulator.")
    ] = "sim",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table.")] = False,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Fit the simulator to measurements, and say how well it does.

    \b
    Examples:
      batchwright calibrate tables/ --base llama-3.1-8b@h100 --out mine.yaml
      batchwright calibrate alone.json crowd.json --out this-machine.yaml
      batchwright calibrate requests.jsonl --base mine.yaml --out served.yaml

    SOURCE is one of three. A folder of kernel tables fits what a GPU computes. The records of a run on cpu or cuda
    (batchwright run --backend cpu:MODEL --json run.json) fit that machine as a whole; several runs fit it together. The
    request log of a vLLM run fits the time that its host adds to a step, and replays it for that: give as --base the
    machine with its kernels.

    It prints the error of each regime on rows that the fit did not see (every fifth), what it was fitted to, and where
    its predictions go beyond what was measured. --out writes a file for --backend sim:FILE.

    Exit code: 0; 2 when the source cannot be read or does not suffice.
    """
    from batchwright.calibration import CalibrationSettings
    from batchwright.cli.output import check_writable, make_console
    from batchwright.errors import ConfigError, did_you_mean
    from batchwright.plugins import load_plugins

    check_writable(out, "--out")
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: end the name in .yaml, by which sim:FILE is known")
    backends = load_plugins(no_plugin or ()).backends
    if backend not in backends:
        raise ConfigError(f"--backend {backend}: there is no such backend: {did_you_mean(backend, backends)}")
    fit = backends[backend].calibrate
    if fit is None:
        able = ", ".join(sorted(name for name, entry in backends.items() if entry.calibrate is not None))
        raise ConfigError(f"--backend {backend}: it has no constants to fit; those that have: {able or 'none'}")
    options = {"files": files, "max_kv_tokens": max_kv_tokens, "arm": arm, "policy": policy}
    report = fit(CalibrationSettings(source[0], base, options, tuple(source[1:])))
    _print(make_console(quiet), report)
    if out is not None:
        out.write_text(report.text, encoding="utf-8")


def _print(console: Console, report: CalibrationReport) -> None:
    from batchwright.cli.output import make_table, print_table, say

    for note in report.notes:
        say(console, note)
    say(console, "")
    table = make_table(console, "regime", "rows", "mean error", "p90", "bias", "rows fitted", "their mean")
    for regime, held_out in report.held_out.items():
        fitted = report.fitted[regime]
        table.add_row(
            regime,
            str(held_out.num_rows),
            f"{100 * held_out.mean:.1f}%",
            f"{100 * held_out.p90:.1f}%",
            f"{100 * held_out.bias:+.1f}%",
            str(fitted.num_rows),
            f"{100 * fitted.mean:.1f}%",
        )
    print_table(console, table)
    say(console, "")
    for sentence in report.extrapolates:
        say(console, sentence)
