"""Which policies can share an engine, one for each decision: worked out from what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchwright.errors import ConfigError
from batchwright.need import Need
from batchwright.plugin_checks import hook_methods
from batchwright.policy import Policy

if TYPE_CHECKING:
    from batchwright.plugins import Plugins

Slots = Mapping[str, tuple[str, Policy]]
_AS_DEFAULT = ("admission", "preemption")
"""Decisions that the core takes from the default policy where nobody is named; the others are ``Policy``'s own."""


def check_composition(slots: Slots, plugins: Plugins, default: str) -> None:
    """Refuse what cannot mean anything.

    Refused is a policy named for a decision that it does not take, and one whose ``needs`` another slot does not meet.

    Args:
        slots: decision to policy and its name.
        plugins: where further policies are found, for the way on.
        default: name of the default policy, which decides admission and preemption where nobody is named.

    Raises:
        ConfigError: the composite makes no sense: why, and what would.
    """
    for hook, (name, policy) in slots.items():
        if hook not in dict(hook_methods(type(policy))):
            raise ConfigError(
                f"policy: {hook} is given to {name!r}, which does not decide it: it has no such hook, and the core "
                f"would decide instead; leave {hook} out, or name a policy that decides it"
                f"{_listed(_deciding(hook, {}, plugins))}"
            )
    for hook, (name, policy) in slots.items():
        for need in policy.needs:
            if need.slot == hook:
                _check(need, name, policy, slots, plugins, default)


def _check(need: Need, name: str, policy: Policy, slots: Slots, plugins: Plugins, default: str) -> None:
    named = slots.get(need.other)
    who = "the core" if named is None else repr(named[0])
    asker = f"policy: {need.slot} {name!r}"
    if not need.declares:
        if named is None or named[1] is not policy:
            raise ConfigError(
                f"{asker} must decide {need.other} as well, because {need.why}, and {who} decides it: name it there "
                f"too, in the same words, or choose another policy for {need.slot}"
            )
        return
    there: Any = named[1] if named is not None else Policy
    if named is None and need.other in _AS_DEFAULT:
        there = plugins.policy(default)()
    found = {attribute: getattr(there, attribute, None) for attribute in need.declares}
    if found != dict(need.declares):
        fitting = _listed(_deciding(need.other, need.declares, plugins))
        raise ConfigError(
            f"{asker} needs {_said(need.declares)} of whoever decides {need.other}, because {need.why}, and {who} "
            f"declares {_said(found)}: name one for {need.other} that fits{fitting}, or another for {need.slot}"
        )


def _said(declared: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in declared.items())


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _deciding(hook: str, declared: Mapping[str, Any], plugins: Plugins) -> list[str]:
    """Installed policies that decide this and declare that, with default parameters where these suffice."""
    found = []
    for name, kind in sorted(plugins.policies.items()):
        try:
            policy: Any = kind()
        except ConfigError:  # a parameter without default
            policy = kind
        if hook in dict(hook_methods(kind)) and all(getattr(policy, k, None) == v for k, v in declared.items()):
            found.append(name)
    return found
