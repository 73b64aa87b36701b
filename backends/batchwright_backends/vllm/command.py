"""``batchwright vllm``: commands for those who serve with vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.options import Debug
from batchwright.cli.program import FAILED, OK, show_help

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright_backends.vllm.doctor import Findings

group = typer.Typer(add_completion=False, rich_markup_mode=None)


@group.callback(invoke_without_command=True)
def vllm(context: typer.Context) -> None:
    """Policies inside vLLM."""
    show_help(context)


@group.command(context_settings={"allow_interspersed_args": False})
def doctor(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="What vllm serve would be given.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was found to a file.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Say which adapter carries a configuration of vLLM, and what of the policy it honours.

    \b
    Examples:
      batchwright vllm doctor -- MODEL --additional-config '{"batchwright": {"policy": "vtc"}}'
      batchwright vllm doctor -- MODEL --scheduler-cls batchwright_backends.vllm.scheduler --enable-lora

    vLLM's own parser reads the arguments and vLLM builds its configuration of them, so that what it refuses is refused
    here too. No server is started and no weights are read; the model's config.json is.

    For each adapter (host: Batchwright's scheduler in the place of vLLM's; guest: the policy in vLLM's own) it says
    whether it carries that configuration, what it refuses and why, and what becomes of each hook that the policy has;
    then whether this version of vLLM was tested, and what to do.

    Exit code: 0 where the server would start with the policy, or, where --scheduler-cls is not among the arguments,
    one of the adapters would carry it; 1 where not; 2 for a wrong command line, arguments that vLLM refuses, or no
    vLLM.
    """
    from batchwright.cli.output import check_writable, make_console
    from batchwright_backends.vllm.arguments import read_arguments
    from batchwright_backends.vllm.doctor import examine

    check_writable(json_file, "--json")
    found = examine(*read_arguments(arguments or ()))
    _print(make_console(), found)
    if json_file is not None:
        json_file.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(OK if found.fine else FAILED)


def _print(console: Console, found: Findings) -> None:
    from batchwright.cli.output import make_table, print_table, say
    from batchwright_backends.vllm.versions import tested_range

    tested = "tested" if found.tested else f"NOT tested: Batchwright was run with vllm{tested_range()}"
    say(console, f"vLLM {found.version or 'of an unknown version'}, {tested}; policy {found.policy}")
    table = make_table(console, "adapter", "--scheduler-cls", "carries this", whole=2)
    for name, one in found.adapters.items():
        asked = " (asked for)" if name == found.named else ""
        table.add_row(name + asked, one.scheduler_cls, "yes" if one.carries else "NO")
    print_table(console, table)
    hooks = list(dict.fromkeys(hook for one in found.adapters.values() for hook in one.hooks))
    table = make_table(console, "hook of the policy", *found.adapters, whole=1)
    for hook in hooks:
        table.add_row(hook, *(one.hooks.get(hook, "") for one in found.adapters.values()))
    print_table(console, table)
    for name, one in found.adapters.items():
        for refusal in one.refused:
            say(console, f"{name} refuses: {refusal}")
        for note in one.notes:
            say(console, f"{name}, not quite: {note}")
    for warning in found.warnings:
        say(console, f"warning: {warning}")
    for advice in found.advice:
        say(console, f"to do: {advice}")
