"""The policy in force: one policy for all decisions, or one for each."""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from typing import Any

from batchwright.errors import PluginError
from batchwright.hookspecs import DECISIONS, OBSERVERS, PROJECT
from batchwright.limits import Limits
from batchwright.plugin_checks import check_plugin
from batchwright.policy import Policy


class Part:
    """The hooks that one policy contributes: the decisions of its slots, and all its observers."""

    def __init__(self, policy: Policy, decisions: tuple[str, ...]) -> None:
        self.policy = policy
        for hook in (*decisions, *OBSERVERS):
            method = getattr(policy, hook, None)
            if method is not None and getattr(method, f"{PROJECT}_impl", None) is not None:
                setattr(self, hook, method)


class ActivePolicy:
    """Policies in their slots, under one name, with what they declare together.

    Attributes:
        name: ``stall_free``; of a composite ``admission=vtc chunking=stall_free``.
        slots: which policy decides each hook; hooks not in it are decided by the core.
        parts: plugin name to the hooks it contributes.
        chunks: from the policy that decides chunking.
        budget_counts_decodes: from the one that decides admission.
        stationary: only if all are.
        steady: from the policy that decides admission.
        preemptive: if whoever decides admission or preemption is.
        uses_predict: if any does.
    """

    def __init__(self, slots: Mapping[str, tuple[str, Policy]]) -> None:
        """Takes decision hook to (policy name, policy).

        Raises:
            PluginError: a hook of a policy is misspelt or mistyped.
        """
        policies: dict[int, tuple[str, Policy, list[str]]] = {}
        for hook in DECISIONS:
            if hook in slots:
                name, policy = slots[hook]
                policies.setdefault(id(policy), (name, policy, []))[2].append(hook)
        self.slots = {hook: slots[hook][1] for hook in DECISIONS if hook in slots}
        self.parts: dict[str, Part] = {}
        for name, policy, hooks in policies.values():
            check_plugin(policy, name)
            key = name
            while key in self.parts:  # one policy with two settings, in two slots
                key += "'"
            self.parts[key] = Part(policy, tuple(hooks))
        whole = len(policies) == 1 and set(slots) == set(DECISIONS)
        self.name = (
            next(iter(self.parts))
            if whole
            else " ".join(f"{hook}={slots[hook][0]}" for hook in DECISIONS if hook in slots)
        )
        everybody = [policy for _, policy, _ in policies.values()]
        self.chunks = self.slots["chunking"].chunks if "chunking" in self.slots else True
        self.budget_counts_decodes = (
            self.slots["admission"].budget_counts_decodes if "admission" in self.slots else False
        )
        self.stationary = all(is_stationary(p) for p in everybody)
        self.steady = "admission" in self.slots and is_steady(self.slots["admission"])
        self.preemptive = any(self.slots[hook].preemptive for hook in ("admission", "preemption") if hook in self.slots)
        self.uses_predict = any(p.uses_predict for p in everybody)

    @classmethod
    def of(cls, policy: Policy, name: str | None = None) -> ActivePolicy:
        """One policy for all decisions."""
        name = name if name is not None else _snake(type(policy).__name__)
        return cls(dict.fromkeys(DECISIONS, (name, policy)))

    def defaults(self, limits: Limits, settled: Container[str] = ()) -> dict[str, Any]:
        """Settings the policies want where the config leaves them unset.

        Args:
            limits: as configured.
            settled: names that the config sets.

        Raises:
            PluginError: two policies of a composite want different values; the config must choose.
        """
        wanted: dict[str, tuple[Any, str]] = {}
        for name, part in self.parts.items():
            for key, value in part.policy.defaults(limits).items():
                if key not in settled and key in wanted and wanted[key][0] != value:
                    other, by = wanted[key]
                    raise PluginError(
                        f"policies {by!r} and {name!r} want different defaults for {key} ({other!r}, {value!r}): "
                        f"set {key} in the config"
                    )
                wanted[key] = (value, name)
        return {key: value for key, (value, _) in wanted.items()}

    def describe(self) -> dict[str, Any]:
        """Policy and parameters of each slot, as plain data."""
        if len(self.parts) == 1 and len(self.slots) == len(DECISIONS):
            name, part = next(iter(self.parts.items()))
            return {"use": name, **part.policy.params.model_dump()}
        names = {id(part.policy): name for name, part in self.parts.items()}
        return {hook: {"use": names[id(p)], **p.params.model_dump()} for hook, p in self.slots.items()}


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def is_stationary(policy: Policy) -> bool:
    """Whether a policy declares itself stationary, in the class that decides or in one derived from it.

    A class that decides something else than the one it inherits from must say it again.
    """
    return policy.stationary and _said_last(policy, "stationary")


def is_steady(policy: Policy) -> bool:
    """Whether a policy declares itself steady, likewise."""
    return policy.steady and _said_last(policy, "steady")


def _said_last(policy: Policy, name: str) -> bool:
    """Whether no class that declares nothing decides something else than the one that does."""
    order = type(policy).__mro__
    said = next(place for place, cls in enumerate(order) if name in vars(cls))
    return not any(hook in vars(cls) for cls in order[:said] for hook in DECISIONS)


def is_policy_class(value: object) -> bool:
    """Whether it is a class of policies (and not an object of one)."""
    return inspect.isclass(value) and issubclass(value, Policy)
