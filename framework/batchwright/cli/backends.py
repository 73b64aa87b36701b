"""``batchwright backends``: what can execute batches here."""

from __future__ import annotations

from batchwright.cli.options import Debug, NoPlugin


def backends(no_plugin: NoPlugin = None, debug: Debug = False) -> None:
    """List the backends, and whether they can run here.

    \b
    Examples:
      batchwright backends
      batchwright ab prefill_first stall_free --backend sim:llama-3.1-70b@h100x4

    "how to write it" is what --backend takes. "here" says yes, or why it cannot run on this machine and what to do.
    """
    from batchwright.cli.output import make_console, make_table, print_table
    from batchwright.plugins import load_plugins

    plugins = load_plugins(no_plugin or ())
    console = make_console()
    table = make_table(console, "backend", "how to write it", "what it is", "here")
    for name, entry in sorted(plugins.backends.items()):
        table.add_row(name, entry.syntax, entry.summary, entry.available() or "yes")
    print_table(console, table)
