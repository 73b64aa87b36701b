"""``batchwright check``: the conformance kit on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.options import Debug, NoPlugin

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright.testing import Report


def check(
    policy: Annotated[
        str,
        typer.Argument(metavar="POLICY", help="NAME, file.py[:Class] or module[:Class]."),
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run this check only. Repeatable.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="CHECK=REASON", help="This check fails, and why it may. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the generated states.")] = 0,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and end.")] = False,
    no_plugin: NoPlugin = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was found to a file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
    debug: Debug = False,
) -> None:
    """Hold a policy to the contract, on generated states.

    \b
    Examples:
      batchwright check my_policy.py:Mine
      batchwright check stall_free:chunk_size=64 --seed 7
      batchwright check my_package --expect stationary="it ages requests"
      batchwright check my_policy.py --only budgets --only progress

    POLICY is NAME, file.py, file.py:Class, module or module:Class, with :param=value,... behind a name or a class; a
    file or module alone stands for all its policies.

    Each check runs small generated workloads, the same ones for the same seed, and asks one thing of the policy. What
    fails is told in a sentence: what was expected, what the policy did, in which step, and how to see it again. A
    check is "not reached" where a fault of another one ended all runs that it looks at: mend that one first. From
    Python and pytest: batchwright.testing.check_policy and parametrize_checks.

    Exit code: 0; 1 when a check fails or is not reached that --expect does not name, or one that it names passes; 2
    for a wrong command line or no such policy.
    """
    from batchwright.cli.output import check_writable, make_console, show_progress
    from batchwright.cli.program import FAILED, OK
    from batchwright.errors import ConfigError
    from batchwright.plugins import load_plugins
    from batchwright.testing import run_checks
    from batchwright.testing.finding import FORMS, find_subjects

    console = make_console(quiet)
    if list_checks:
        _list(console)
        return
    if not policy:
        raise ConfigError(f"name the policy to check: {FORMS}; --list lists the checks")
    check_writable(json_file, "--json")
    expected = _expected(expect or ())
    reports: list[Report] = []
    subjects = find_subjects(policy, load_plugins(no_plugin or ()))
    with show_progress(quiet, "loading") as progress:
        for subject in subjects:

            def told(done: int, total: int, label: str = subject.label) -> None:
                if progress is not None:
                    progress(label, done, total)

            reports.append(run_checks(subject, expected, seed=seed, checks=only, progress=told))
    for report in reports:
        _print(console, report)
    if json_file is not None:
        json_file.write_text(json.dumps([r.to_json() for r in reports], indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(OK if all(r.ok for r in reports) else FAILED)


def _expected(texts: list[str] | tuple[()]) -> dict[str, str]:
    from batchwright.errors import ConfigError

    expected = {}
    for text in texts:
        name, equals, reason = text.partition("=")
        if not equals or not reason.strip():
            raise ConfigError(f"--expect {text}: write it as CHECK=REASON, with the reason in words")
        expected[name] = reason
    return expected


def _list(console: Console) -> None:
    from batchwright.cli.output import make_table, print_table
    from batchwright.testing.conformance import CHECKS, describe

    table = make_table(console, "check", "what it asks")
    for name in CHECKS:
        table.add_row(name, describe(name))
    print_table(console, table)


def _print(console: Console, report: Report) -> None:
    from batchwright.cli.output import make_table, print_table, say
    from batchwright.testing.conformance import describe

    words = {"passed": "passed", "failed": "FAILED", "skipped": "skipped", "expected": "fails as expected"}
    words |= {"unreached": "not reached", "unexpected": "PASSES UNEXPECTEDLY"}
    table = make_table(console, "check", "result", "what it asks", whole=2)
    for outcome in report.outcomes:
        table.add_row(outcome.name, words[outcome.status], describe(outcome.name))
    print_table(console, table)
    say(console, "")
    say(console, str(report))
