"""The generated parts of these pages: ``python docs/policies/pages.py`` writes them anew.

A part stands between ``<!-- parameters: NAME -->`` or ``<!-- card: NAME -->`` and ``<!-- end -->``. A test fails while
a page differs from what this module makes of the code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from batchwright import card as cards
from batchwright.cli.policies import declared, parameters
from batchwright.policy import Policy

FOLDER = Path(__file__).parent
_PART = re.compile(r"(<!-- (?P<kind>parameters|card): (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def parameters_of(policy: type[Policy]) -> str:
    """A table of a policy's parameters."""
    found = parameters(policy.Params)
    if not found:
        return "It takes no parameters.\n"
    rows = [f"| `{n}` | {kind} | `{default}` | {meaning} |" for n, (kind, default, meaning) in found.items()]
    return "\n".join(["| parameter | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def card_of(policy: type[Policy]) -> str:
    """A policy's card: source, rules and where they are, deviations, evidence, what it declares and costs.

    Raises:
        ValueError: it has no card of its own, or does not say what a step costs.
    """
    found, cost = cards.card_of(policy), cards.cost_of(policy)
    if found is None or found[1] is not policy or cost is None:
        raise ValueError(f"policy {policy.__name__} lacks a card, or the cost of a step in its documentation")
    card = found[0]
    lines = [f"Source: {card.source}.", "", "| rule of the source | in the code |", "| --- | --- |"]
    lines += [f"| {rule} | `{where}` |" for rule, where in card.rules.items()]
    if card.deviations:
        lines += ["", "Deviations:", "", *(f"- {text}" for text in card.deviations)]
    lines += ["", "Evidence:", "", *(f"- *{kind}*: {what}" for kind, what in card.evidence.items())]
    lines += ["", f"Declares: {', '.join(declared(policy())) or 'nothing special'}.", "", cost.replace("``", "`")]
    return "\n".join(lines) + "\n"


def filled(text: str, policies: dict[str, type[Policy]]) -> str:
    """A page with its generated parts made anew.

    Raises:
        KeyError: a part names a policy that there is not.
    """
    makers: dict[str, Any] = {"parameters": parameters_of, "card": card_of}
    return _PART.sub(lambda m: f"{m[1]}\n{makers[m['kind']](policies[m['name']])}\n{m[4]}", text)


def main() -> int:
    """Write all pages; returns 0."""
    from batchwright.plugins import load_plugins

    policies = dict(load_plugins().policies)
    for page in sorted(FOLDER.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = filled(old, policies)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
