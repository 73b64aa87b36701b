"""What is run at a point of a design: arms, a workload and options, with one setting after another changed."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from batchwright.config import EngineConfig, field_names
from batchwright.effective import effective_settings
from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab.designs.axis import Point, in_words
from batchwright.lab.designs.changed_load import OF_LOAD, SYNTHETIC_KEYS, is_synthetic, with_load
from batchwright.lab.endpoint.address import is_endpoint
from batchwright.lab.executors.installed import Installed
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.plugins import Plugins
from batchwright.resolve import DEFAULT_POLICY, parse_arm, resolve_policy, resolve_predictor, resolve_router

NAMING = ("policy", "predict", "router")
"""Settings that name something and give it parameters."""

_OPEN = ("backend_options", *NAMING)
_OPTIONS = {"declared_max_tokens": "declared", "respect_eos": "respect_eos"}


@dataclass(frozen=True)
class Setup:
    """Arms, what is offered to each, and how their runs are made.

    Attributes:
        configs: the arms' names and settings.
        workload: what to offer.
        options: of :func:`~batchwright.lab.run_arm`, for every arm.
        origins: by arm, where its config's values come from.
        local: by arm, options that stay in this process.
        window: which requests count.
        seed: of a run that is not repeated.
        resample: whether the workload of several seeds varies with them.
        make: makes the workload with some of its fields changed; None: what can be done of what it says of itself.
    """

    configs: Mapping[str, EngineConfig]
    workload: Workload
    options: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    local: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    window: Window | None = None
    seed: int = 0
    resample: bool = True
    make: Callable[[Mapping[str, Any]], Workload] | None = None
    _all: Installed = field(default_factory=Installed, repr=False, compare=False)

    def at(self, point: Point) -> Setup:
        """The setup with these settings changed, and checked.

        A name is a field of the config (``max_num_batched_tokens``, ``policy.chunk_size``), of every arm, or of one
        with its name or letter in front (``B.policy.chunk_size``); or ``rate``, ``speedup``, ``limit`` of the workload,
        ``declared_max_tokens``, ``respect_eos``, or a key of a synthetic workload (``prompt``, ``burstiness``).

        Raises:
            ConfigError, WorkloadError, PluginError: there is no such setting, or it cannot have this value.
        """
        changed = self
        of_load: dict[str, Any] = {}
        where = f"point {in_words(point)}"
        for name, value in point.items():
            kind, arm, inner = self._meant(name)
            if kind == "load":
                of_load[inner] = value
            elif kind == "option":
                changed = replace(changed, options={**changed.options, inner: value})
            else:
                chosen = (arm,) if arm is not None else tuple(changed.configs)
                configs = {
                    name: with_setting(config, inner, value, where) if name in chosen else config
                    for name, config in changed.configs.items()
                }
                changed = replace(changed, configs=configs)
        if of_load:
            made = self.make(of_load) if self.make is not None else with_load(self.workload, of_load)
            changed = replace(changed, workload=made)
        changed.check(where)
        return changed

    def check(self, where: str = "config") -> None:
        """Whether all that the arms name exists, and their settings go together.

        Raises:
            ConfigError, PluginError: what is wrong, of which arm.
        """
        for arm, config in self.configs.items():
            if is_endpoint(config.backend):
                continue  # its settings are its server's
            plugins = self._installed(arm)
            try:
                predictor = resolve_predictor(config.predict, plugins)
                has_router = config.replicas > 1 or config.router is not None
                router = resolve_router(config.router, plugins) if has_router else None
                policy = resolve_policy(config.policy, plugins)
                effective_settings(config, policy, self.origins.get(arm), predictor, router)
            except ConfigError as error:
                raise ConfigError(f"{where}, arm {arm}: {error}") from None

    def effective(self, arm: str, name: str) -> Any:
        """The value in force of a setting of an arm, parameters of its policy among them; None: it has none.

        Raises:
            ConfigError: there is no such arm or setting.
        """
        kind, _, inner = self._meant(name)
        if kind == "load":
            return {"speedup": self.workload.speedup, "rate": self.workload.rate}.get(inner)
        if kind == "option":
            return self.options.get(inner)
        config = self.configs[arm]
        plugins = self._installed(arm)
        values: Any = effective_settings(config, resolve_policy(config.policy, plugins)).values
        if inner in values:
            return values[inner]
        for part in inner.split("."):
            values = values.get(part) if isinstance(values, Mapping) else None
        return values

    def _installed(self, arm: str) -> Plugins:
        """What is installed, without what the arm leaves out; loaded once for all setups that are made of this one."""
        given = self.local.get(arm, {}).get("installed")
        return given if isinstance(given, Plugins) else self._all.without(self.configs[arm].no_plugins)

    def kind_of(self, name: str) -> str:
        """What a setting is of: ``config``, ``load`` or ``option``.

        Raises:
            ConfigError: there is no such setting.
        """
        return self._meant(name)[0]

    def _meant(self, name: str) -> tuple[str, str | None, str]:
        """What kind of setting a name means, of which arm (None: of all), and its name without the arm's."""
        letters = dict(zip(string.ascii_uppercase, self.configs, strict=False))
        # Labels may hold dots, so they are not found by splitting; the longest is meant.
        for label in sorted({*self.configs, *letters}, key=len, reverse=True):
            if name.startswith(f"{label}."):
                inner = name[len(label) + 1 :]
                if not _is_setting(inner):
                    raise ConfigError(f"axis {name!r}: unknown setting {inner!r}; {did_you_mean(inner, _settings())}")
                return "config", letters.get(label, label) if label not in self.configs else label, inner
        if name == "seed":
            raise ConfigError("axis 'seed': seeds are no settings to compare; run several with --seeds")
        if _is_setting(name):
            return "config", None, name
        if name in _OPTIONS:
            return "option", None, _OPTIONS[name]
        inner = name.removeprefix("workload.")
        if inner in OF_LOAD:
            return "load", None, inner
        if inner in SYNTHETIC_KEYS:
            if not is_synthetic(self.workload):
                raise ConfigError(
                    f"axis {name!r} is a key of synthetic workloads, and {self.workload.name} is none; of a trace "
                    f"there are {', '.join(OF_LOAD)}"
                )
            return "load", None, inner
        known = [*_settings(), *OF_LOAD, *_OPTIONS]
        if is_synthetic(self.workload):
            known += SYNTHETIC_KEYS
        raise ConfigError(f"axis {name!r}: there is no such setting; {did_you_mean(name, known)}")


def with_setting(config: EngineConfig, name: str, value: Any, where: str = "config") -> EngineConfig:
    """A config with one setting changed; what was unset otherwise stays so, for the policy to say.

    Args:
        config: of an arm.
        name: dotted, as in ``--set``.
        value: of it.
        where: what to say in errors.

    Raises:
        ConfigError: the value is out of its range.
    """
    values = config.model_dump(exclude_unset=True)
    *path, last = name.split(".")
    node = values
    for depth, part in enumerate(path):
        inner = node.get(part)
        if inner is None and depth == 0 and part == "policy":
            inner = DEFAULT_POLICY
        node[part] = parse_arm(inner) if isinstance(inner, str) else dict(inner or {})
        node = node[part]
    node[last] = value
    return EngineConfig.parse(values, where)


def _settings() -> list[str]:
    return [name for name in field_names(EngineConfig) if name != "seed"]


def _is_setting(name: str) -> bool:
    root, dot, inner = name.partition(".")
    return name in _settings() or bool(dot and inner and root in _OPEN)
