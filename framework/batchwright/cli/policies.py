"""``batchwright policies``: what can be named, and what one of them takes."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli.options import Debug, NoPlugin

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from batchwright.plugins import Plugins
    from batchwright.policy import Policy
    from batchwright.router import Router


def policies(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Tell all about this one; path.py:Class works too.")
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Where it comes from, rule by rule, and what speaks for it.")
    ] = False,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """List the policies and routers, or tell all about one.

    \b
    Examples:
      batchwright policies
      batchwright policies stall_free
      batchwright policies --card vtc
      batchwright policies --card my_policy.py:Mine
      batchwright policies prefix_aware

    The list says what each does, what it declares, and which distribution brings it. Declared are: "never cuts"
    (prompts run whole, so those beyond the token budget are refused), "decodes are free" (they take nothing of the
    budget), "predicts" (it needs a backend with a cost estimate: sim), "stationary" (what it decided it decides again
    until something changes), "preemptive" (residents are evicted for newcomers), "reserves all" (blocks to the end are
    taken at the start), "decodes wait" (some steps leave them out for prompts), "fair to clients" (service is shared by
    what each has had). Below the policies stand the routers, which say which replica of a fleet takes a request.

    With NAME: its documentation, its parameters with type and default, the settings it wants where the config says
    nothing, and the hooks it implements. batchwright config schema --policy NAME gives the parameters as JSON Schema.

    With --card NAME: the paper or system it comes from, where each rule of that is in the code, what it does otherwise,
    the evidence (decisions replayed, property tested, from the paper only), and what a step costs.

    Exit code: 0; 1 when --card asks for the card of a policy that has none; 2 when there is no such policy.
    """
    from batchwright.cli.card import print_card
    from batchwright.cli.output import make_console, make_table, print_table, say
    from batchwright.cli.program import FAILED, OK
    from batchwright.errors import ConfigError
    from batchwright.plugins import load_plugins

    plugins = load_plugins(no_plugin or ())
    console = make_console()
    if card and name is None:
        raise ConfigError("--card: name the policy whose card is meant, as in batchwright policies --card stall_free")
    if name is not None:
        what, found = _find(name, plugins)
        plugin = plugins.origin.get((what, name.partition(":")[0]))
        origin = plugins.plugins[plugin].distribution if plugin is not None else inspect.getfile(type(found))
        if card:
            raise typer.Exit(OK if print_card(console, name, found, origin) else FAILED)
        _describe(console, name, found, origin)
        return
    table = make_table(console, "policy", "what it does", "declares", "from")
    for known, kind in sorted(plugins.policies.items()):
        distribution = plugins.plugins[plugins.origin["policies", known]].distribution
        table.add_row(known, summary(kind), ", ".join(declared(_default(kind))), distribution)
    print_table(console, table)
    say(console, "")
    table = make_table(console, "router", "what it does", "from")
    for known, router in sorted(plugins.routers.items()):
        table.add_row(known, summary(router), plugins.plugins[plugins.origin["routers", known]].distribution)
    print_table(console, table)
    say(console, "batchwright policies NAME tells all about one; --card NAME, where it comes from.")


def _find(name: str, plugins: Plugins) -> tuple[str, Policy | Router]:
    """A policy, or else a router, of that name; and which of them it is."""
    from batchwright.errors import ConfigError
    from batchwright.resolve import resolve_policy, resolve_router

    head = name.partition(":")[0]
    if head in plugins.routers and head not in plugins.policies:
        return "routers", resolve_router(name, plugins)[1]
    try:
        return "policies", next(iter(resolve_policy(name, plugins).slots.values()))
    except ConfigError:
        if ".py:" in name:
            with contextlib.suppress(ConfigError):
                return "routers", resolve_router(name, plugins)[1]
        raise


def _default(kind: type[Policy]) -> Policy | type[Policy]:
    """An object with default parameters, since these may change what it declares; the class where some have none."""
    from batchwright.errors import ConfigError

    try:
        return kind()
    except ConfigError:
        return kind


def summary(kind: type[Policy | Router]) -> str:
    """The first paragraph of the documentation of a policy or router."""
    from batchwright.policy import Policy
    from batchwright.router import Router

    doc = inspect.getdoc(kind) if kind.__doc__ or kind.__mro__[1] not in (Policy, Router) else None
    return " ".join((doc or "").partition("\n\n")[0].split())


def declared(policy: Policy | type[Policy]) -> list[str]:
    """What a policy declares, in words, where it differs from what most do."""
    said = {
        "never cuts": not policy.chunks,
        "decodes are free": not policy.budget_counts_decodes,
        "predicts": policy.uses_predict,
        "stationary": policy.stationary,
        "preemptive": policy.preemptive,
        "reserves all": policy.reserves_all,
        "decodes wait": not policy.decodes_every_step,
        "fair to clients": policy.fair_to_clients,
    }
    return [words for words, holds in said.items() if holds]


def _describe(console: Console, name: str, policy: Policy | Router, origin: str) -> None:
    from batchwright.cli.output import make_table, print_table, say
    from batchwright.hookspecs import HOOKS
    from batchwright.limits import Limits
    from batchwright.plugin_checks import hook_methods
    from batchwright.policy import Policy

    kind = type(policy)
    say(console, f"{name}, from {origin}\n")
    say(console, (inspect.getdoc(kind) or "It has no documentation.") + "\n")
    if isinstance(policy, Policy):
        say(console, f"declares: {', '.join(declared(policy)) or 'nothing special'}")
    marked = dict(hook_methods(kind))
    say(console, f"hooks: {', '.join(hook for hook in HOOKS if hook in marked)}")
    wanted = policy.defaults(Limits()) if isinstance(policy, Policy) else None
    if wanted:
        said = ", ".join(f"{key}={value}" for key, value in wanted.items())
        say(console, f"settings it wants where the config leaves them unset: {said}")
    if not kind.Params.model_fields:
        say(console, "parameters: none")
        return
    say(console, "parameters:")
    table = make_table(console, "name", "type", "default", "what it is")
    for parameter, (words, default, description) in parameters(kind.Params).items():
        table.add_row(parameter, words, default, description)
    print_table(console, table)


def parameters(model: type[BaseModel]) -> dict[str, tuple[str, str, str]]:
    """Name to type in words, default and description of each field."""
    schema = model.model_json_schema()
    found = {}
    for name, field in schema.get("properties", {}).items():
        default = "required" if "default" not in field else _value(field["default"])
        found[name] = (_type(field), default, field.get("description", ""))
    return found


def _type(field: dict[str, Any]) -> str:
    """A JSON Schema in words: ``integer >= 1 or null``."""
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"])
    if "const" in field:
        return _value(field["const"])
    if "enum" in field:
        return " or ".join(map(_value, field["enum"]))
    words = str(field.get("type", field.get("$ref", "any").rpartition("/")[2]))
    for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if key in field:
            words += f" {sign} {field[key]}"
    return words


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
