"""From what a config or a caller says to policies in their slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from batchwright.active_policy import ActivePolicy, is_policy_class
from batchwright.composition import check_composition
from batchwright.errors import ConfigError, did_you_mean
from batchwright.file_module import import_file
from batchwright.hookspecs import DECISIONS
from batchwright.plugin_checks import check_plugin
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Policy
from batchwright.predictor import Predictor
from batchwright.router import Router
from batchwright.routers.round_robin import RoundRobin

DEFAULT_POLICY = "prefill_first"
DEFAULT_ROUTER = "round_robin"
Kind = TypeVar("Kind", Policy, Predictor, Router)


def default_policy(plugins: Plugins | None = None) -> Policy:
    """The default policy with its default parameters, found by its name."""
    return (plugins if plugins is not None else load_plugins()).policy(DEFAULT_POLICY)()


def parse_arm(text: str) -> dict[str, Any]:
    """``NAME`` or ``NAME:param=value,param=value`` as ``{"use": NAME, param: value}``; values are YAML scalars.

    A policy in a file is written ``path/to/file.py:ClassName``, with parameters behind a further colon.

    Raises:
        ConfigError: a part is not ``param=value``.
    """
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        name, (cls, _, rest) = f"{name}:", rest.partition(":")
        name += cls
    values: dict[str, Any] = {"use": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"policy {text!r}: {part!r} is not of the form param=value")
        if key.strip() in values:
            raise ConfigError(f"policy {text!r}: {key.strip()!r} is given twice")
        try:
            values[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[key.strip()] = value
    return values


def resolve_policy(
    spec: Policy | ActivePolicy | str | Mapping[str, Any] | None, plugins: Plugins | None = None
) -> ActivePolicy:
    """Policies in their slots.

    Args:
        spec: a policy object; ``NAME`` or ``NAME:param=value,…``; ``{"use": NAME, param: value}``; a mapping of
            decision hooks to any of these; None for the default policy.
        plugins: where names are looked up; None loads what is installed, if a name must be looked up.

    Raises:
        ConfigError: an unknown policy, decision or parameter; or a composite that makes no sense, and why.
        PluginError: a plugin or a hook is wrong.
    """
    if isinstance(spec, ActivePolicy):
        return spec
    if isinstance(spec, Policy):
        return ActivePolicy.of(spec)
    if is_policy_class(spec):
        raise ConfigError(f"policy: give an object, {spec.__name__}(...), and not the class")  # type: ignore[union-attr]
    plugins = plugins if plugins is not None else load_plugins()
    if spec is None:
        spec = DEFAULT_POLICY
    if not isinstance(spec, (str, Mapping)):
        raise ConfigError(f"policy: it must be a name, a mapping or a policy object, not {spec!r}")
    if isinstance(spec, str) or "use" in spec:
        name, policy = _one(spec, plugins)
        return ActivePolicy.of(policy, name)
    slots: dict[str, tuple[str, Policy]] = {}
    made: dict[str, tuple[str, Policy]] = {}
    if not spec:
        raise ConfigError("policy: it is empty; give a name, or a mapping of decisions to names")
    for hook, part in spec.items():
        if hook not in DECISIONS:
            raise ConfigError(f"policy: unknown decision {hook!r}; {did_you_mean(hook, (*DECISIONS, 'use'))}")
        if is_policy_class(part) or not isinstance(part, (str, Mapping, Policy)):
            raise ConfigError(f"policy: {hook} must be a name, a mapping with use, or a policy object, not {part!r}")
        if isinstance(part, Policy):
            slots[hook] = (type(part).__name__, part)
            continue
        key = repr(sorted((parse_arm(part) if isinstance(part, str) else dict(part)).items()))
        if key not in made:  # the same words in two slots are one object, so that its decisions share state
            made[key] = _one(part, plugins)
        slots[hook] = made[key]
    active = ActivePolicy(slots)
    check_composition(slots, plugins, DEFAULT_POLICY)
    return active


def resolve_fallback(
    spec: Policy | ActivePolicy | str | Mapping[str, Any] | None, plugins: Plugins | None = None
) -> ActivePolicy | None:
    """Who builds a step in the place of a policy that broke a rule.

    Args:
        spec: as of :func:`resolve_policy`; None: the default policy does, as the core makes it.
        plugins: where names are looked up; None loads what is installed, if a name must be looked up.

    Raises:
        ConfigError, PluginError: it is no policy, or not one that can always build a step.
    """
    if spec is None:
        return None
    active = resolve_policy(spec, plugins)
    if active.chunks and not active.uses_predict:
        return active
    lacks = "it needs step times in advance" if active.chunks else "it cuts no prompts, and another's may be too long"
    raise ConfigError(
        f"fallback_policy: {active.name!r} cannot take the place of any other, since {lacks}; use one such as "
        "prefill_first or vllm_v1"
    )


def _one(spec: str | Mapping[str, Any], plugins: Plugins) -> tuple[str, Policy]:
    values = parse_arm(spec) if isinstance(spec, str) else dict(spec)
    name = values.pop("use", None)
    if not isinstance(name, str):
        raise ConfigError(f"policy: use must name a policy, not {name!r}, in {spec!r}")
    if ".py:" in name:
        cls = _from_file(name, Policy)
        return cls.__name__, cls.from_values(values)
    return name, plugins.policy(name).from_values(values)


def resolve_predictor(
    spec: str | Mapping[str, Any] | None, plugins: Plugins | None = None
) -> tuple[str, Predictor] | None:
    """A predictor and its name.

    Args:
        spec: ``NAME`` or ``NAME:param=value,…``; ``{"use": NAME, param: value}``; for the name also a file and a class.
            None: nobody predicts.
        plugins: where names are looked up; None loads what is installed.

    Raises:
        ConfigError: an unknown predictor or parameter.
        PluginError: a hook of it is wrong.
    """
    if spec is None:
        return None
    name, values = _named(spec, "predict: use must name a predictor", "predict: {use: noisy, tau: 0.5}")
    if ".py:" in name:
        cls = _from_file(name, Predictor)
        check_plugin(cls, cls.__name__)
        return cls.__name__, cls.from_values(values)
    plugins = plugins if plugins is not None else load_plugins()
    return name, plugins.predictor(name).from_values(values)


def resolve_router(spec: str | Mapping[str, Any] | None, plugins: Plugins | None = None) -> tuple[str, Router]:
    """A router and its name.

    Args:
        spec: ``NAME`` or ``NAME:param=value,…``; ``{"use": NAME, param: value}``; for the name also a file and a class.
            None: the default router.
        plugins: where names are looked up; None loads what is installed.

    Raises:
        ConfigError: an unknown router or parameter.
        PluginError: a hook of it is wrong.
    """
    if spec is None:
        return DEFAULT_ROUTER, RoundRobin()
    name, values = _named(spec, "router: use must name a router", "router: {use: prefix_aware, load_weight: 0.5}")
    if ".py:" in name:
        cls = _from_file(name, Router)
        check_plugin(cls, cls.__name__)
        return cls.__name__, cls.from_values(values)
    plugins = plugins if plugins is not None else load_plugins()
    return name, plugins.router(name).from_values(values)


def _named(spec: str | Mapping[str, Any], problem: str, example: str) -> tuple[str, dict[str, Any]]:
    """The name that a spec gives, and the parameters."""
    values = parse_arm(spec) if isinstance(spec, str) else dict(spec)
    name = values.pop("use", None)
    if not isinstance(name, str):
        raise ConfigError(f"{problem}, not {name!r}; as in {example}")
    return name, values


def _from_file(name: str, base: type[Kind]) -> type[Kind]:
    path, _, attribute = name.rpartition(":")
    kind = base.__name__.lower()
    module = import_file(path, kind, f"{kind} {name!r}: ")
    cls = getattr(module, attribute, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        found = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, base) and v is not base]
        raise ConfigError(
            f"{kind} {name!r}: {path} has no {kind} class {attribute!r}; {did_you_mean(attribute, found)}"
        )
    return cls
