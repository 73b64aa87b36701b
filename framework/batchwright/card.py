"""A policy's card: where its rules come from, where each is in the code, and what speaks for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchwright.errors import PluginError, did_you_mean

EVIDENCE = ("decisions replayed", "property tested", "from the paper only")
"""Kinds of evidence, the strongest first: recorded decisions of the source are reproduced; a property that the source
claims is tested; nothing but the source's text."""

WHAT_IT_IS = (
    "A card says from which paper or system a policy comes, where each rule of that is in the code, what is done "
    "otherwise, and what speaks for it. To give a policy one, set card = batchwright.Card(source=..., "
    "rules={rule: attribute}, deviations=(...), evidence={kind: what}) in its class; kinds of evidence are "
    + ", ".join(EVIDENCE)
    + "."
)
"""For whoever asks for the card of a policy that has none."""

_SENTENCE = re.compile(r"(?<=[.:;]) (?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Card:
    """What a policy says of its origin; as ``card`` on its class.

    Attributes:
        source: the paper (authors, title, venue) or the system (repository, version, file).
        rules: each rule of the source to where it is in the code: an attribute of the class (``admission``), or a
            parameter (``Params.quantum``).
        deviations: what is done otherwise than in the source, and why.
        evidence: kind (one of :data:`EVIDENCE`) to what it covers.

    Raises:
        PluginError: there is no source or no rule, or an unknown kind of evidence.
    """

    source: str
    rules: Mapping[str, str]
    deviations: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.source or not self.rules:
            raise PluginError("a policy's card names its source and at least one rule of it")
        for kind in self.evidence:
            if kind not in EVIDENCE:
                raise PluginError(f"card of {self.source!r}: unknown evidence {kind!r}; {did_you_mean(kind, EVIDENCE)}")


def card_of(policy: type) -> tuple[Card, type] | None:
    """A policy's card, and the class that has it: the policy's own, else the nearest that it derives from.

    Raises:
        PluginError: what stands there is no card.
    """
    for cls in policy.__mro__:
        card = vars(cls).get("card")
        if card is not None:
            if not isinstance(card, Card):
                raise PluginError(f"policy {cls.__name__}: card must be a batchwright.Card, not {card!r}")
            return card, cls
    return None


def place_of(policy: type, where: str) -> str | None:
    """File and line of a rule's place in the code, such as ``vtc.py:105``; None: there is no such place.

    Args:
        policy: a policy class.
        where: as in :attr:`Card.rules`.
    """
    owner, _, name = where.rpartition(".")
    holder = getattr(policy, owner, None) if owner else policy
    for cls in holder.__mro__ if isinstance(holder, type) else ():
        if name in vars(cls) or name in vars(cls).get("__annotations__", {}):
            try:
                return _line_of(cls, name)
            except (OSError, TypeError):  # made without a file, in an interactive session say
                return cls.__name__
    return None


def _line_of(cls: type, name: str) -> str:
    value: Any = vars(cls).get(name)
    value = inspect.unwrap(getattr(value, "__func__", value))
    if inspect.isfunction(value):
        file, (_, line) = inspect.getfile(value), inspect.getsourcelines(value)
    else:
        file, (lines, line) = inspect.getfile(cls), inspect.getsourcelines(cls)
        line += next((n for n, text in enumerate(lines) if re.match(rf"\s*{re.escape(name)}\s*[:=]", text)), 0)
    return f"{Path(file).name}:{line}"


def cost_of(policy: type) -> str | None:
    """What a policy's documentation says of the cost of a step: the sentences with an ``O(…)`` in them."""
    for cls in policy.__mro__:
        text = " ".join((vars(cls).get("__doc__") or "").split())
        found = [sentence for sentence in _SENTENCE.split(text) if "O(" in sentence]
        if found:
            return " ".join(found)
    return None
