"""Checks of a plugin when it is loaded: hooks misspelt, unmarked, or with wrong arguments or annotations."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from batchwright import hookspecs
from batchwright.errors import PluginError, did_you_mean
from batchwright.hookspecs import HOOKS, PROJECT
from batchwright.request import Request

_RETURNS: dict[str, tuple[type, ...]] = {
    "admission": (collections.abc.Iterable, types.NoneType),
    "chunking": (int, types.NoneType),
    "reservation": (int, types.NoneType),
    "preemption": (Request, hookspecs.Hold, types.NoneType),
    "arrival": (bool, hookspecs.Refusal, types.NoneType),
    "predict_output": (int, types.NoneType),
    "routing": (int, types.NoneType),
}


def hook_methods(plugin: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Name and function of each method or function of a plugin that is marked with ``@hookimpl``."""
    for name in dir(plugin):
        if name.startswith("__"):
            continue
        method = inspect.getattr_static(plugin, name)
        method = getattr(method, "__func__", method)
        if inspect.isfunction(method) and getattr(method, f"{PROJECT}_impl", None) is not None:
            yield name, method


def check_plugin(plugin: object, name: str) -> None:
    """Check all hooks of a plugin.

    Raises:
        PluginError: naming plugin, hook, cause and remedy.
    """
    marked = dict(hook_methods(plugin))
    for hook, function in marked.items():
        where = f"plugin {name!r} ({function.__module__}), hook {hook!r}"
        if getattr(function, f"{PROJECT}_impl").get("specname"):
            raise PluginError(f"{where}: specname is not supported; give the method the hook's name")
        if hook not in HOOKS:
            raise PluginError(f"{where}: there is no such hook; {did_you_mean(hook, HOOKS)}")
        _check_arguments(function, getattr(hookspecs, hook), where)
        _check_annotations(function, hook, where)
    for hook in HOOKS:
        if hook not in marked and _is_own_function(plugin, hook):
            raise PluginError(
                f"plugin {name!r}, function {hook!r}: it is named like a hook and not marked; put @hookimpl above it"
            )


def _is_own_function(plugin: object, name: str) -> bool:
    """Whether a plugin defines a function of that name (a module may also import one)."""
    value = inspect.getattr_static(plugin, name, None)
    value = getattr(value, "__func__", value)
    imported = inspect.ismodule(plugin) and getattr(value, "__module__", None) != plugin.__name__
    return inspect.isfunction(value) and not imported


def _arguments(function: Callable[..., Any]) -> list[str]:
    """What it takes of a hook: neither ``self`` nor what has a default."""
    parameters = inspect.signature(function).parameters
    return [n for n, p in parameters.items() if p.default is p.empty and n not in ("self", "cls")]


def _check_arguments(function: Callable[..., Any], spec: Callable[..., Any], where: str) -> None:
    known = _arguments(spec)
    for argument in _arguments(function):
        if argument not in known:
            raise PluginError(f"{where}: unknown argument {argument!r}; it can take {', '.join(known)}")


def _check_annotations(function: Callable[..., Any], hook: str, where: str) -> None:
    expected = _expected()
    for argument, annotation in function.__annotations__.items():
        kind = _evaluate(annotation, function)
        if kind is None and annotation is not None and annotation != "None":
            continue  # not to be evaluated at run time: type checkers see it
        if argument == "return":
            options = getattr(function, f"{PROJECT}_impl")
            allowed = None if options["wrapper"] or options["hookwrapper"] else _RETURNS.get(hook)
            wrong = [k for k in _classes(kind) if not issubclass(k, allowed)] if allowed else []
            if wrong:
                names = " or ".join("None" if a is types.NoneType else a.__name__ for a in allowed or ())
                raise PluginError(f"{where}: annotated to return {_show(annotation)}; the hook returns {names}")
        elif argument in expected:
            classes = _classes(kind)
            if classes and not any(issubclass(expected[argument], k) for k in classes):
                raise PluginError(
                    f"{where}: argument {argument!r} is annotated {_show(annotation)}; "
                    f"it is a {expected[argument].__name__}"
                )


def _expected() -> dict[str, type]:
    from batchwright.backend import StepResult
    from batchwright.fleet.view import FleetView
    from batchwright.step import Step

    return {
        "fleet": FleetView,
        "step": Step,
        "request": Request,
        "victim": Request,
        "result": StepResult,
        "reason": str,
    }


def _evaluate(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    names: dict[str, Any] = {**vars(typing), **vars(collections.abc), **vars(hookspecs)}
    names |= {kind.__name__: kind for kind in _expected().values()} | getattr(function, "__globals__", {})
    try:
        return eval(annotation, names)
    except Exception:  # whatever an annotation that is not meant to be evaluated may raise
        return None


def _classes(kind: Any) -> list[type]:
    """The classes an annotation stands for; empty where that cannot be said (Any, type variables)."""
    if kind is None:
        return [types.NoneType]
    if hasattr(kind, "__metadata__"):  # Annotated
        kind = kind.__origin__
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return [c for part in typing.get_args(kind) for c in _classes(part)]
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(kind)]
    if inspect.isclass(origin):
        return [origin]
    return [kind] if inspect.isclass(kind) and kind is not Any else []


def _show(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
