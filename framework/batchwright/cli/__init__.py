"""The command line, ``batchwright``: one command a file.

A command parses its options, calls the library and prints; what it computes is in :mod:`batchwright.lab`,
:mod:`batchwright.replay` and :mod:`batchwright.engine`. Heavy imports happen inside commands, so that ``--help`` is
fast.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``sys.argv``; ends the process with the command's exit code."""
    from batchwright.cli.app import app

    app(prog_name="batchwright")
