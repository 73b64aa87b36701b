"""What a policy in one slot of a composite relies on in another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchwright.errors import PluginError, did_you_mean
from batchwright.hookspecs import DECISIONS


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a policy relies on in another slot; in ``needs`` on its class.

    A composite in which it is missing is refused when it is made, with ``why`` in the message. A policy that decides
    everything alone is never asked for its needs.

    Attributes:
        slot: the decision in which the policy relies on it.
        other: the decision that it relies on.
        why: in words, to follow "because".
        declares: what the policy in ``other`` must declare, by attribute: ``{"reserves_all": True}``. Empty: it must be
            this very policy, since the two decisions share what happened between them.

    Raises:
        PluginError: there is no such decision, or no reason.
    """

    slot: str
    other: str
    why: str
    declares: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.slot, self.other):
            if name not in DECISIONS:
                raise PluginError(f"a Need speaks of decision {name!r}; {did_you_mean(name, DECISIONS)}")
        if self.slot == self.other or not self.why:
            raise PluginError(f"a Need of {self.slot!r} names another decision, and says why in words")
