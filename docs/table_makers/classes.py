"""Tables of what a class says of itself: its attributes, parameters and card."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic import BaseModel

from batchwright.card import Card, cost_of
from batchwright.cli.policies import parameters
from table_makers.markdown import code, table

_ROLE = re.compile(r":\w+:`~?(?:\w+\.)*(\w+)`")


def of_model(model: type[BaseModel]) -> str:
    """Parameters of a predictor or router."""
    found = parameters(model)
    if not found:
        return "It takes no parameters.\n"
    return table(
        ("parameter", "type", "default", "meaning"), [(code(n), k, code(d), m) for n, (k, d, m) in found.items()]
    )


def router_card(router: type[Any]) -> str:
    """Where a router comes from, as a table."""
    card: Card = router.card
    rows = [("source", card.source)]
    rows += [(f"rule: {rule}", f"in the code: {code(where)}") for rule, where in card.rules.items()]
    rows += [("deviation", text) for text in card.deviations]
    rows += [(f"evidence: {kind}", what) for kind, what in card.evidence.items()]
    rows.append(("cost", (cost_of(router) or "").replace("``", "`")))
    return table(("", ""), rows)


def of_attributes(model: type[Any]) -> str:
    """Options that are documented in a class's ``Attributes``."""
    said = attributes(model)
    rows = [(code(n), k, code(d), said[n]) for n, (k, d, _) in parameters(model).items()]
    return table(("option", "type", "default", "meaning"), rows)


def attributes(kind: type[Any]) -> dict[str, str]:
    """Name to text of each entry under ``Attributes:`` in a docstring."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n\S", section)[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n?^    (?=\S)", section, flags=re.MULTILINE):
        names, colon, text = entry.partition(": ")
        if colon:
            for name in names.split(", "):
                found[name.strip()] = " ".join(text.split()).replace("``", "`")
    return found


def shown(kind: type[Any]) -> str:
    """What hooks may read of an object: attributes, then properties and methods that its docstring does not list."""
    said = attributes(kind)
    rows = [(code(name), _ROLE.sub(r"`\1`", text)) for name, text in said.items()]
    members = {name: member for cls in reversed(kind.__mro__[:-1]) for name, member in vars(cls).items()}
    for name, member in members.items():
        if not name.startswith("_") and name not in said:
            if isinstance(member, property):
                rows.append((code(name), _first_line(member)))
            elif inspect.isfunction(member):
                arguments = list(inspect.signature(member).parameters.values())[1:]
                call = ", ".join(a.name if a.default is a.empty else f"{a.name}={a.default}" for a in arguments)
                rows.append((code(f"{name}({call})"), _first_line(member)))
    return table(("name", "what it is"), rows)


def _first_line(member: Any) -> str:
    text = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split()).replace("``", "`")
    return text[:1].lower() + text[1:]
