"""A policy's card: where its rules come from, where each is in the code, and what speaks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchwright.errors import PluginError, did_you_mean

EVIDENCE = ("decisions replayed", "property tested", "from the paper only")
"""Kinds of evidence, the strongest first: recorded decisions of the source are reproduced; a property that the source
claims is tested; nothing but the source's text."""


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
