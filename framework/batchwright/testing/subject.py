"""What is checked: a policy that can be made anew for every run, and plugins that run beside it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchwright.active_policy import ActivePolicy, is_policy_class
from batchwright.errors import ConfigError
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Policy
from batchwright.resolve import default_policy, resolve_policy

PolicyLike = Policy | type[Policy] | Callable[[], Policy] | str | Mapping[str, Any]
"""What can be checked: see :func:`batchwright.testing.check_policy`."""


class Subject:
    """Makes a fresh policy for each run: one object serves one engine.

    Attributes:
        label: how reports name it.
        spec: how a command line names it; None for an object or a class.
    """

    def __init__(
        self,
        policy: PolicyLike,
        plugins: Sequence[object] = (),
        *,
        spec: str | None = None,
        installed: Plugins | None = None,
    ) -> None:
        """Takes a policy and plugins.

        Args:
            policy: an object is made anew from its class and parameters (where its constructor takes ``params``; else
                it is copied); a class or a function is called without arguments; anything else is read as in a config.
            plugins: objects, which are copied, or classes or functions, which are called; they run in every engine.
            spec: how a command line names it, where ``policy`` does not say.
            installed: plugins loaded already.

        Raises:
            ConfigError: it is none of these, or cannot be made.
            PluginError: a hook of it is wrong.
        """
        self.spec = policy if isinstance(policy, str) else spec
        self._installed = installed
        self._default: type[Policy] | None = None
        self._make: Callable[[], ActivePolicy]
        if isinstance(policy, (str, Mapping)):
            recipe = resolve_policy(policy, installed if installed is not None else load_plugins())
            self._make = lambda: _remake(recipe)
        else:
            make = _maker(policy)
            self._make = lambda: ActivePolicy.of(make())
        self._plugins: list[Any] = [plugin if _is_called(plugin) else _copy(plugin) for plugin in plugins]
        made = self.make()
        self.label = self.spec if self.spec is not None else made.name

    def make(self) -> ActivePolicy:
        """A fresh policy."""
        return self._make()

    def make_plugins(self) -> list[Any]:
        """Fresh plugins."""
        return [plugin() if _is_called(plugin) else _copy(plugin) for plugin in self._plugins]

    def make_default(self) -> Policy:
        """A fresh default policy, for what a policy leaves open and for swaps."""
        if self._default is None:
            self._default = type(default_policy(self._installed))
        return self._default()

    def policies(self) -> list[Policy]:
        """A fresh object of each policy of it; one, unless it is a composite."""
        return [part.policy for part in self.make().parts.values()]


def _maker(policy: Any) -> Callable[[], Policy]:
    if isinstance(policy, Policy):
        kind, params = type(policy), policy.params
        if "params" in inspect.signature(kind).parameters:
            return lambda: kind(params)
        original = _copy(policy)
        return lambda: _copy(original)
    make: Callable[[], Policy] = policy
    if is_policy_class(policy):
        return make
    made = make() if callable(policy) and not inspect.isclass(policy) else None
    if not isinstance(made, Policy):
        raise ConfigError(
            f"check a policy object, a policy class, a function that makes a policy, or what a config may say, not "
            f"{policy!r}"
        )
    return make


def _remake(recipe: ActivePolicy) -> ActivePolicy:
    """The same policies with the same parameters in the same slots."""
    fresh = {id(p): type(p).from_values(p.params.model_dump()) for p in recipe.slots.values()}
    names = {id(part.policy): name for name, part in recipe.parts.items()}
    return ActivePolicy({hook: (names[id(p)], fresh[id(p)]) for hook, p in recipe.slots.items()})


def _is_called(plugin: Any) -> bool:
    return inspect.isclass(plugin) or inspect.isfunction(plugin)


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise ConfigError(
            f"{type(value).__name__} cannot be copied ({type(error).__name__}: {error}), and each run needs a fresh "
            "one: give the class, a function that makes it, or a name"
        ) from error
