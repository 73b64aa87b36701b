"""``batchwright diff``: the first step in which two policies part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import EngineOptions, OutputOptions, WorkloadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright.cli.lockstep import Decision, Parting

_SHOWN = 40
"""Rows of a batch in the table; those that differ go first."""


@takes_groups
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The first arm, which executes.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The arm that is compared with it.")],
    engine: EngineOptions,
    workload: WorkloadOptions,
    output: OutputOptions,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", metavar="N", min=1, help="Look at the first N steps only.")
    ] = None,
) -> None:
    """Find the first step in which two policies part.

    Both see the same requests and the same tokens, in lockstep, until one decides something else than the other:
    another batch, another number of tokens, another order, another victim, or a refusal. Arms are written as for
    batchwright ab.

    \b
    Examples:
      batchwright diff prefill_first stall_free
      batchwright diff stall_free stall_free:chunk_size=256 --workload trace.csv
      batchwright diff prefill_first my_policy.py:Mine --set num_blocks=200

    It prints the step's index and time, the queues before it, victims and refusals, and both batches side by side: for
    each request its tokens computed so far, and how many it gets from A and from B ("-": it is not in the batch), with
    its place in the batch in brackets. Rows marked * differ.

    Exit code: 0 when they never part; 1 when they do; 2 for a wrong command line or config.
    """
    from batchwright.cli.arms import check_one_backend, make_arms
    from batchwright.cli.lockstep import Lockstep
    from batchwright.cli.output import check_writable, make_console, show_progress
    from batchwright.cli.program import FAILED, OK
    from batchwright.cli.workloads import make_workload

    check_writable(output.json_file, "--json")
    arms = make_arms([a, b], engine)
    check_one_backend(arms)
    backend = arms[0].config.backend
    rows = make_workload(workload, backend, arms[0].plugins)
    with show_progress(output.quiet, f"starting {backend}") as progress:
        lockstep = Lockstep(
            (arms[0], arms[1]),
            rows,
            declared=workload.declared_max_tokens,
            respect_eos=workload.respect_eos,
            seed=engine.seed or 0,
        )
        try:
            parting = lockstep.run(max_steps, progress)
        finally:
            lockstep.close()
    labels = (arms[0].label, arms[1].label)
    _print(make_console(output.quiet), parting, labels)
    if output.json_file is not None:
        output.json_file.write_text(json.dumps(_to_json(parting, labels)) + "\n", encoding="utf-8")
    raise typer.Exit(OK if parting.decisions is None else FAILED)


def _print(console: Console, parting: Parting, labels: tuple[str, str]) -> None:
    from batchwright.cli.output import make_table, print_table, say

    if parting.decisions is None:
        first = "" if parting.is_complete else "the first "
        say(console, f"no difference in {first}{parting.num_steps} steps between {labels[0]} and {labels[1]}")
        return
    one, two = parting.decisions
    step = parting.num_steps
    before = (
        "it is the first" if not step else f"the first {step} are the same" if step > 1 else "the first is the same"
    )
    say(console, f"step {step} differs, at {parting.time_s:.6f} s; {before}")
    table = make_table(console, "", f"A: {labels[0]}", f"B: {labels[1]}")
    for name, values in {
        "waiting before": [str(d.num_waiting) for d in parting.decisions],
        "resident before": [str(d.num_running) for d in parting.decisions],
        "free blocks before": [str(d.free_blocks) for d in parting.decisions],
        "batch": [f"{len(d.batch)} requests, {d.num_tokens} tokens" for d in parting.decisions],
        "evicted": [", ".join(d.preempted) or "nobody" for d in parting.decisions],
    }.items():
        table.add_row(name, *values)
    print_table(console, table)
    for letter, mine, theirs in (("A", one, two), ("B", two, one)):
        for name, reason in mine.refused.items():
            if name not in theirs.refused:
                say(console, f"{letter} refuses {name}: {reason}")
    print_table(console, _batches(console, one, two))


def _batches(console: Console, one: Decision, two: Decision) -> Any:
    """Both batches, aligned by request."""
    from batchwright.cli.output import make_table

    table = make_table(console, "", "request", "phase", "computed", "A", "B", whole=6)
    names = list(dict.fromkeys((*one.batch, *two.batch)))
    places = [{name: place for place, name in enumerate(d.batch)} for d in (one, two)]
    differing = {name for name in names if _cell(one, places[0], name) != _cell(two, places[1], name)}
    shown = names if len(names) <= _SHOWN else [*(n for n in names if n in differing)][:_SHOWN]
    for name in shown:
        row = one.batch.get(name) or two.batch[name]
        table.add_row(
            "*" if name in differing else "",
            name,
            "prompt" if row.is_prefill else "decode",
            str(row.num_computed),
            _cell(one, places[0], name),
            _cell(two, places[1], name),
        )
    left = len(names) - len(shown)
    if left:
        same = len(names) - len(differing)
        table.add_row("", f"and {left} more", f"{same} the same" if same else "")
    return table


def _cell(decision: Decision, places: dict[str, int], name: str) -> str:
    row = decision.batch.get(name)
    return "-" if row is None else f"{row.num_tokens} [{places[name]}]"


def _to_json(parting: Parting, labels: tuple[str, str]) -> dict[str, Any]:
    arms = []
    for label, decision in zip(labels, parting.decisions or (), strict=False):
        arms.append(
            {
                "arm": label,
                "scheduled": [[name, row.num_tokens, row.num_computed] for name, row in decision.batch.items()],
                "preempted": decision.preempted,
                "refused": decision.refused,
                "num_waiting": decision.num_waiting,
                "num_running": decision.num_running,
                "free_blocks": decision.free_blocks,
            }
        )
    return {
        "differs": parting.decisions is not None,
        "complete": parting.is_complete,
        "num_equal_steps": parting.num_steps,
        "step": parting.num_steps if arms else None,
        "time_s": parting.time_s,
        "arms": arms,
    }
