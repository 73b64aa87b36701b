"""``batchwright config``: which settings are in force, and which there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import Debug, EngineOptions, NoPlugin
from batchwright.cli.program import show_help

if TYPE_CHECKING:
    from batchwright.effective import Effective

group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
"""The command ``config``."""

BY_BACKEND = "chosen by the backend"
_FROM_BACKEND = ("max_model_len", "block_size", "num_blocks")
"""Settings that the backend chooses where nobody else does."""


@group.callback()
def config(context: typer.Context) -> None:
    """Show which settings are in force and where they come from, or which there are.

    \b
    Sources, the later wins:
      1. the defaults
      2. what the policy wants (batchwright policies NAME)
      3. the file of --config (YAML or TOML)
      4. the environment: BATCHWRIGHT_SET_MAX_NUM_SEQS=64,
         BATCHWRIGHT_SET_PREFIX_CACHE__ENABLED=false
      5. --set max_num_seqs=64, --backend, --seed, --no-plugin
      6. the arm: its file, or NAME:param=value,...
      7. --arm-set A.max_num_seqs=64
    """
    show_help(context)


@group.command()
@takes_groups
def show(
    engine: EngineOptions,
    arm: Annotated[str, typer.Argument(metavar="[ARM]", help="A policy or a config file.", show_default=False)] = "",
    with_backend: Annotated[
        bool, typer.Option("--with-backend", help="Make the backend too, and show what it chooses.")
    ] = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print them as a config file, which serves as an arm.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show the settings in force, and where each comes from.

    \b
    Examples:
      batchwright config show
      batchwright config show stall_free:chunk_size=256 --config serve.yaml
      batchwright config show vllm_v1 --set max_num_seqs=64 --with-backend
      batchwright config show vllm_v1 --yaml > arm.yaml

    Each row is a setting under the name that --set takes. "from" is the source that won; "chosen by the backend" are
    those that only the backend knows, such as how many KV blocks fit its memory.
    """
    from batchwright.cli.arms import make_arms
    from batchwright.cli.output import make_console, make_table, print_table

    made = make_arms([arm], engine)[0]
    effective = made.check()
    if with_backend:
        from batchwright.engine import Engine

        one = made.config.model_copy(update={"replicas": 1, "router": None})
        fleet = {name: effective.values[name] for name in ("replicas", "router")}
        with Engine(one, origins=made.origins, installed=made.plugins) as running:
            effective = running.effective
        effective.values.update(fleet)
    if as_yaml:
        import yaml

        plain = json.loads(json.dumps(_nested(effective), default=str))  # parameters may be tuples, enums, paths
        typer.echo(yaml.safe_dump(plain, sort_keys=False), nl=False)
        return
    console = make_console()
    table = make_table(console, "setting", "value", "from")
    for name, value in effective.values.items():
        origin = effective.origins.get(name, "default")
        if value is None and name in _FROM_BACKEND and not with_backend:
            table.add_row(name, "", BY_BACKEND)
        else:
            table.add_row(name, _value(value), origin)
    print_table(console, table)


@group.command()
def schema(
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Of this policy's parameters instead.")
    ] = None,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of a config file, or of a policy's parameters.

    \b
    Examples:
      batchwright config schema > batchwright.schema.json
      batchwright config schema --policy stall_free

    Editors that know JSON Schema check and complete config files with it.
    """
    from batchwright.config import EngineConfig

    model: Any = EngineConfig
    if policy is not None:
        from batchwright.plugins import load_plugins
        from batchwright.resolve import resolve_policy

        found = resolve_policy(policy, load_plugins(no_plugin or ()))
        model = type(next(iter(found.slots.values()))).Params
    typer.echo(json.dumps(model.model_json_schema(), indent=2))


def _nested(effective: Effective) -> dict[str, Any]:
    """The settings as a config file holds them; what is left to the backend is left out."""
    nested: dict[str, Any] = {}
    for name, value in effective.values.items():
        if value is None and name in _FROM_BACKEND:
            continue
        *path, last = name.split(".")
        into = nested
        for part in path:
            into = into.setdefault(part, {})
        into[last] = value
    return nested


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items()) or "{}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
