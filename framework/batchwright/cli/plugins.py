"""``batchwright plugins``: what is installed, and what it brings."""

from __future__ import annotations

from batchwright.cli.options import Debug, NoPlugin

KINDS = ("policies", "backends", "predictors", "routers", "workloads", "metrics")


def plugins(no_plugin: NoPlugin = None, debug: Debug = False) -> None:
    """List the installed plugins, and what each brings.

    \b
    Examples:
      batchwright plugins
      batchwright plugins --no-plugin broken

    Installing a plugin activates nothing: its policies and backends are there to be named, and hooks of its own
    ("runs:") take part only in an engine whose config lists the plugin under plugins. A plugin that cannot be loaded
    is an error everywhere, so that no experiment runs without it unnoticed; --no-plugin NAME leaves it out on purpose.
    """
    from batchwright.cli.output import make_console, make_table, print_table
    from batchwright.plugins import load_plugins

    installed = load_plugins(no_plugin or ())
    console = make_console()
    table = make_table(console, "plugin", "from", "brings")
    for name, plugin in installed.plugins.items():
        brought = []
        for kind in KINDS:
            names = [known for known in sorted(getattr(installed, kind)) if installed.origin[kind, known] == name]
            if names:
                brought.append(f"{kind}: {', '.join(names)}")
        if plugin.active_hooks:
            brought.append(f"runs: {', '.join(plugin.active_hooks)}")
        table.add_row(name, plugin.distribution, "; ".join(brought) or "nothing")
    print_table(console, table)
