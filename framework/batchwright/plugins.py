"""Installed plugins: what the entry points of group ``batchwright`` bring.

An entry point names a module or an object that holds hookimpls; first-party policies and backends arrive the same way.
Loading asks each for what it registers and activates nothing: a policy runs when a config names it, other hooks of a
plugin when the config lists the plugin under ``plugins``. Whatever is wrong with an installed plugin is fatal, so that
no experiment runs on without it; ``--no-plugin NAME`` leaves one out on purpose.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from batchwright.active_policy import is_policy_class
from batchwright.backend import BackendEntry
from batchwright.errors import ConfigError, PluginError, did_you_mean
from batchwright.hookspecs import DECISIONS, OBSERVERS, REGISTRATIONS, ROUTING
from batchwright.plugin_checks import check_plugin, hook_methods
from batchwright.policy import Policy
from batchwright.predictor import Predictor, is_predictor_class
from batchwright.router import Router, is_router_class

if TYPE_CHECKING:
    from batchwright.lab.plugin_metrics import MetricSet, RequestMetric, RunMetric

GROUP = "batchwright"
T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One installed plugin.

    Attributes:
        name: of its entry point.
        distribution: name and version of the distribution it came with.
        value: the module or object.
        active_hooks: its decision, routing and observer hooks, which run where a config lists it under ``plugins``.
    """

    name: str
    distribution: str
    value: object
    active_hooks: tuple[str, ...] = ()


@dataclass
class Plugins:
    """All installed plugins, and what they register.

    Attributes:
        plugins: by name, in the order of loading.
        policies, backends, predictors, routers, workloads, metrics: what they register, by name.
        origin: ``(kind, name)`` to the plugin that registered it.
    """

    plugins: dict[str, Plugin] = field(default_factory=dict)
    policies: dict[str, type[Policy]] = field(default_factory=dict)
    backends: dict[str, BackendEntry] = field(default_factory=dict)
    predictors: dict[str, type[Predictor]] = field(default_factory=dict)
    routers: dict[str, type[Router]] = field(default_factory=dict)
    workloads: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, RunMetric | RequestMetric] = field(default_factory=dict)
    origin: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, plugin: Plugin) -> None:
        """Take what one plugin registers.

        Raises:
            PluginError: a hook is misspelt, raises or returns the wrong thing, or a name is taken.
        """
        where = f"plugin {plugin.name!r} of {plugin.distribution}"
        remedy = f"mend or uninstall it, or {_without(plugin.name)}"
        try:
            check_plugin(plugin.value, plugin.name)
        except PluginError as error:
            raise PluginError(f"{error} (distribution {plugin.distribution}); {_without(plugin.name)}") from None
        self.plugins[plugin.name] = plugin
        for hook in REGISTRATIONS:
            function = getattr(plugin.value, hook, None)
            if function is None or hook not in dict(hook_methods(plugin.value)):
                continue
            kind = hook.removeprefix("register_")
            try:
                brought = function()
            except Exception as error:
                raise PluginError(
                    f"{where}: {hook}() raised {type(error).__name__}: {error}; {_without(plugin.name)}"
                ) from error
            if not isinstance(brought, Mapping):
                raise PluginError(f"{where}: {hook}() must return a mapping of names, not {brought!r}; {remedy}")
            for name, value in brought.items():
                try:
                    self._check_value(kind, name, value)
                except PluginError as error:
                    raise PluginError(f"{where}: {error}; {remedy}") from None
                other = self.origin.get((kind, name))
                if other is not None:
                    raise PluginError(
                        f"{where} registers {kind} {name!r}, and so does plugin {other!r} of "
                        f"{self.plugins[other].distribution}; uninstall one, or {_without(plugin.name)}"
                    )
                if kind == "metrics":
                    value = self._checked_metric(name, value, where, plugin.name)
                self.origin[kind, name] = plugin.name
                getattr(self, kind)[name] = value

    @staticmethod
    def _check_value(kind: str, name: object, value: object) -> None:
        if not isinstance(name, str) or not name or set(name) & set(" :,=\t\n"):
            raise PluginError(f"{name!r} cannot name one of {kind}: letters, digits, '_', '-' and '.' only")
        if kind == "policies":
            if not is_policy_class(value):
                raise PluginError(f"policy {name!r} must be a subclass of batchwright.Policy, not {value!r}")
            check_plugin(value, name)
        if kind == "predictors":
            if not is_predictor_class(value):
                raise PluginError(f"predictor {name!r} must be a subclass of batchwright.Predictor, not {value!r}")
            check_plugin(value, name)
        if kind == "routers":
            if not is_router_class(value):
                raise PluginError(f"router {name!r} must be a subclass of batchwright.Router, not {value!r}")
            check_plugin(value, name)
        if kind == "backends" and not isinstance(value, BackendEntry):
            raise PluginError(f"backend {name!r} must be a batchwright.BackendEntry, not {value!r}")

    def _checked_metric(self, name: str, value: object, where: str, plugin: str) -> RunMetric | RequestMetric:
        """A metric as summaries take it, if all its names in them are free."""
        from batchwright.lab.metrics import METRICS
        from batchwright.lab.plugin_metrics import checked_metric, names_in_summary

        remedy = f"mend or uninstall it, or {_without(plugin)}"
        try:
            metric = checked_metric(name, value)
        except PluginError as error:
            raise PluginError(f"{where}: {error}; {remedy}") from None
        taken = {
            known: self.origin["metrics", other]
            for other, brought in self.metrics.items()
            for known in names_in_summary(other, brought)
        }
        for known in names_in_summary(name, metric):
            if known in METRICS:
                raise PluginError(f"{where} registers metric {known!r}, which Batchwright has itself; {remedy}")
            if known in taken:
                other = taken[known]
                raise PluginError(
                    f"{where} registers metric {known!r}, and so does plugin {other!r} of "
                    f"{self.plugins[other].distribution}; uninstall one, or {_without(plugin)}"
                )
        return metric

    @property
    def metric_set(self) -> MetricSet:
        """The metrics of summaries: Batchwright's own, and these."""
        from batchwright.lab.plugin_metrics import MetricSet

        return MetricSet(self.metrics, {name: self.origin["metrics", name] for name in self.metrics})

    def policy(self, name: str) -> type[Policy]:
        """The policy class of that name.

        Raises:
            ConfigError: there is none; the message gives the nearest names.
        """
        return _named("unknown policy", name, self.policies)

    def predictor(self, name: str) -> type[Predictor]:
        """The predictor class of that name.

        Raises:
            ConfigError: there is none; the message gives the nearest names.
        """
        return _named("predict: unknown predictor", name, self.predictors)

    def router(self, name: str) -> type[Router]:
        """The router class of that name.

        Raises:
            ConfigError: there is none; the message gives the nearest names.
        """
        return _named("router: unknown router", name, self.routers)

    def backend(self, name: str) -> BackendEntry:
        """The backend of that name.

        Raises:
            ConfigError: there is none; the message gives the nearest names.
        """
        if name.lower() in ("http", "https"):
            raise ConfigError(
                f"{name}://... is an endpoint, a server elsewhere, without an engine here; run and ab take it so"
            )
        return _named("unknown backend", name, self.backends)

    def active(self, name: str) -> object:
        """The object of a plugin that a config lists under ``plugins``.

        Raises:
            ConfigError: it is not installed, or has no hooks that could run.
        """
        plugin = _named("plugins: unknown plugin", name, self.plugins)
        if not plugin.active_hooks:
            raise ConfigError(
                f"plugins: {name!r} only registers things and has no hooks to run; name its policy instead"
            )
        return plugin.value


def _named(problem: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ConfigError(f"{problem} {name!r}; {did_you_mean(name, known)}")
    return known[name]


def load_plugins(without: Iterable[str] = (), points: Iterable[EntryPoint] | None = None) -> Plugins:
    """Load all installed plugins, in the order of their names.

    Args:
        without: names left out.
        points: entry points to use instead of the installed ones.

    Raises:
        PluginError: a plugin fails to import, or what it brings is wrong; names plugin, distribution, cause, remedy.
        ConfigError: ``without`` names a plugin that is not installed.
    """
    found = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: (p.name, p.value))
    names = {p.name for p in found}
    skipped = set(without)
    for name in sorted(skipped - names):
        raise ConfigError(f"--no-plugin {name}: there is no such plugin; {did_you_mean(name, names)}")
    plugins = Plugins()
    seen: dict[str, EntryPoint] = {}
    for point in found:
        if point.name in skipped:
            continue
        if point.name in seen:
            other = seen[point.name]
            if (other.value, _distribution(other)) == (point.value, _distribution(point)):
                continue  # one distribution found twice on the path
            raise PluginError(
                f"two distributions bring a plugin named {point.name!r}: {_distribution(other)} ({other.value}) and "
                f"{_distribution(point)} ({point.value}); uninstall one of them, or {_without(point.name)}"
            )
        seen[point.name] = point
        plugins.add(_load(point))
    return plugins


def _load(point: EntryPoint) -> Plugin:
    where = f"plugin {point.name!r} of {_distribution(point)}"
    try:
        value = point.load()
    except Exception as error:
        raise PluginError(
            f"{where} cannot be imported ({point.value}): {type(error).__name__}: {error}; mend or uninstall it, or "
            f"{_without(point.name)}"
        ) from error
    if inspect.isclass(value):
        raise PluginError(
            f"{where} names the class {point.value}: an entry point names a module or an object that holds hookimpls "
            f"(policies are offered by register_policies); mend or uninstall it, or {_without(point.name)}"
        )
    hooks = dict(hook_methods(value))
    active = tuple(h for h in (*DECISIONS, *ROUTING, *OBSERVERS) if h in hooks)
    return Plugin(point.name, _distribution(point), value, active)


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown distribution"


def _without(name: str) -> str:
    return f"run with --no-plugin {name}"
