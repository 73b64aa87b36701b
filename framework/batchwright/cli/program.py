"""What surrounds every command: errors in one sentence, exit codes, interrupts and broken pipes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from batchwright.errors import BatchwrightError, ComparisonError, ExperimentError, PluginError, PolicyError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: fine; a difference or a failed run; a usage or config error; Ctrl-C."""

COMMANDS = "batchwright.commands"
"""Group of the entry points that bring commands: each names a typer app."""

_AFTER_THE_START = (PolicyError, ComparisonError, ExperimentError)
"""Errors of a run that had begun; all others say that what was asked for cannot be had."""


class Program(TyperGroup):
    """The root command: an error is a sentence on stderr that says how to go on; a traceback only with ``--debug``.

    Installed distributions bring further commands; each is imported when it is asked for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, those that distributions bring last."""
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in entry_points(group=COMMANDS)} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        for point in entry_points(group=COMMANDS, name=cmd_name):
            try:
                return typer.main.get_command(point.load())
            except Exception as error:
                whose = f" of {point.dist.name}" if point.dist is not None else ""
                raise PluginError(
                    f"command {cmd_name!r}{whose} cannot be loaded ({point.value}): {type(error).__name__}: {error}; "
                    "mend or uninstall that distribution"
                ) from error
        return None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit with its code."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except SystemExit as error:  # of a broken pipe that typer or rich met
            code = error.code
        except Exception as error:
            if "--debug" in given and not isinstance(error, BrokenPipeError):
                raise
            code = _report(error)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            code = FAILED
        sys.exit(code if isinstance(code, int) else OK)


def show_help(context: typer.Context) -> None:
    """Print a group's help when none of its commands was named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _report(error: Exception) -> int:
    """Print an error; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return FAILED
    if isinstance(error, BatchwrightError):
        _print(str(error))
        return FAILED if isinstance(error, _AFTER_THE_START) else USAGE
    if isinstance(error, OSError):
        _print(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return USAGE
    message = getattr(error, "format_message", None)  # a usage error, whichever click typer stands on
    if callable(message):
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context is not None else ""
        _print(f"{str(message()).rstrip('.')}{where}")
        return USAGE
    _print(
        f"{type(error).__name__}: {error}: this is a fault of Batchwright or of a plugin; run it again with --debug "
        "for the traceback"
    )
    return FAILED


def _print(message: str) -> None:
    sentence = " ".join(message.split())
    with contextlib.suppress(BrokenPipeError):
        print(f"error: {sentence}", file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Whoever read our output went away (``| head``), and the interpreter would complain when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
