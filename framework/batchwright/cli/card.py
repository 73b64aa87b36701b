"""``batchwright policies --card``: where a policy comes from, and what speaks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from batchwright.card import WHAT_IT_IS, Card, card_of, cost_of, place_of
from batchwright.cli.output import make_table, print_table, say
from batchwright.cli.policies import declared, parameters, summary

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright.policy import Policy
    from batchwright.router import Router


def print_card(console: Console, name: str, policy: Policy | Router, origin: str) -> bool:
    """Print the card of a policy or router; returns whether it has one.

    Args:
        console: where to.
        name: as it was asked for.
        policy: an object of it.
        origin: of the class: distribution, or file.
    """
    from batchwright.policy import Policy

    kind = type(policy)
    found = card_of(kind)
    say(console, f"{name}, from {origin}\n")
    if found is None:
        say(console, f"It has no card. {WHAT_IT_IS}\n")
    else:
        card, owner = found
        if owner is not kind:
            say(console, f"It has no card of its own; this is the card of {owner.__name__}, from which it derives.\n")
        _print(console, card, kind)
    rest = {"cost": (cost_of(kind) or "not stated").replace("``", "")}
    if isinstance(policy, Policy):
        rest = {"declares": ", ".join(declared(policy)) or "nothing special", **rest}
    if not kind.Params.model_fields:
        rest["parameters"] = "none"
    if found is None:
        rest = {"decides": summary(kind) or "it has no documentation", **rest}
    _print_pairs(console, rest)
    if kind.Params.model_fields:
        table = make_table(console, "parameter", "type", "default", "what it is")
        for parameter, (words, default, description) in parameters(kind.Params).items():
            table.add_row(parameter, words, default, description)
        say(console, "")
        print_table(console, table)
    return found is not None


def _print(console: Console, card: Card, kind: type[Policy | Router]) -> None:
    _print_pairs(console, {"decides": summary(kind), "source": card.source})
    say(console, "")
    table = make_table(console, "where", "in the code", "rule of the source", whole=2)
    for rule, where in card.rules.items():
        table.add_row(where, place_of(kind, where) or "not there", rule)
    print_table(console, table)
    say(console, "")
    deviations = "\n".join(card.deviations) if card.deviations else "none known"
    evidence = dict(card.evidence) or {"evidence": "none is given"}
    _print_pairs(console, {"deviations": deviations, **evidence})


def _print_pairs(console: Console, pairs: dict[str, str]) -> None:
    """Names and what they mean, wrapped beside them."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=20, style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs.items():
        lines = value.split("\n")
        for place, line in enumerate(lines):
            grid.add_row("" if place else name, _item(line) if len(lines) > 1 else Text(line))
    print_table(console, grid)


def _item(line: str) -> Table:
    inner = Table.grid(padding=(0, 1, 0, 0))
    inner.add_row("-", Text(line))
    return inner
