"""What is checked: a policy that can be made anew for every run, and plugins that run beside it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.active_policy import ActivePolicy, is_policy_class
from batchwright.errors import ConfigError
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Policy
from batchwright.resolve import resolve_policy

PolicyLike = Policy | type[Policy] | str | Mapping[str, Any]
"""A policy object, a class, or what a config may say: a name, ``name:param=value``, ``file.py:Class``, a composite."""


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
            policy: an object is copied for each run; a class is called without arguments; anything else is read as
                in a config.
            plugins: objects, which are copied, or classes, which are called; they run in every engine of the kit.
            spec: how a command line names it, where ``policy`` does not say.
            installed: plugins loaded already.

        Raises:
            ConfigError: it is none of these, or cannot be made.
            PluginError: a hook of it is wrong.
        """
        self.spec = policy if isinstance(policy, str) else spec
        self._object = _copy(policy) if isinstance(policy, Policy) else None
        self._class: type[Policy] | None = policy if is_policy_class(policy) else None  # type: ignore[assignment]
        self._plugins = [plugin if inspect.isclass(plugin) else _copy(plugin) for plugin in plugins]
        self._recipe: ActivePolicy | None = None
        if self._object is None and self._class is None:
            if not isinstance(policy, (str, Mapping)):
                raise ConfigError(f"check a policy object, a policy class, or what a config may say, not {policy!r}")
            self._recipe = resolve_policy(policy, installed if installed is not None else load_plugins())
        made = self.make()
        self.label = self.spec if self.spec is not None else made.name

    def make(self) -> ActivePolicy:
        """A fresh policy."""
        if self._object is not None:
            return ActivePolicy.of(_copy(self._object))
        if self._class is not None:
            return ActivePolicy.of(self._class())
        assert self._recipe is not None
        recipe = self._recipe
        fresh = {id(p): type(p)(p.params) for p in recipe.slots.values()}
        names = {id(part.policy): name for name, part in recipe.parts.items()}
        return ActivePolicy({hook: (names[id(p)], fresh[id(p)]) for hook, p in recipe.slots.items()})

    def make_plugins(self) -> list[Any]:
        """Fresh plugins."""
        return [plugin() if inspect.isclass(plugin) else _copy(plugin) for plugin in self._plugins]

    def policies(self) -> list[Policy]:
        """A fresh object of each policy of it; one, unless it is a composite."""
        return [part.policy for part in self.make().parts.values()]


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise ConfigError(
            f"{type(value).__name__} cannot be copied ({type(error).__name__}: {error}), and each run needs a fresh "
            "one: give the class, or a name"
        ) from error
