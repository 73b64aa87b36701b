"""Whether a vLLM has the surfaces that the adapters stand on.

``python -m batchwright_backends.vllm.lacking`` imports each from the vLLM that is installed and prints what it lacks,
as a JSON object; nothing runs.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from batchwright.errors import ConfigError
from batchwright_backends.vllm.surfaces import GUEST, SURFACES, Surface
from batchwright_backends.vllm.surfaces_beside import SURFACES_BESIDE
from batchwright_backends.vllm.versions import tested_range, vllm_version


class Missing(NamedTuple):
    """A surface that a vLLM has not, or has otherwise.

    Attributes:
        adapters: which of ours stand on it.
        hooks: what of a policy needs it; nothing: everything does.
        what: its name, and what is wrong with it.
    """

    adapters: tuple[str, ...]
    hooks: tuple[str, ...]
    what: str


def missing(surfaces: Iterable[Surface] = (*SURFACES, *SURFACES_BESIDE)) -> list[Missing]:
    """What the vLLM that is installed lacks, each with its name; all are imported."""
    found = []
    for surface in surfaces:
        where = f"{surface.module}.{surface.name}"
        try:
            value = _find(surface)
        except Exception as error:
            lacks = [f"{where} ({type(error).__name__}: {error})"]
        else:
            lacks = [f"{where}.{member}" for member in surface.members if not _has(value, member)]
        found += [Missing(surface.adapters, surface.hooks, what) for what in lacks]
    return found


def _find(surface: Surface) -> Any:
    """The class or function, from the first of its modules that has it; else the error of the newest."""
    first: Exception | None = None
    for module in (surface.module, *surface.before):
        try:
            return getattr(importlib.import_module(module), surface.name)
        except Exception as error:
            first = first or error
    raise first or AssertionError(surface)


def check_scheduler(scheduler: Any) -> None:
    """Whether a scheduler of vLLM has, once made, what the guest uses of it and of its KV blocks.

    Raises:
        ConfigError: it has not; all that is missing is named.
    """
    manager = getattr(scheduler, "kv_cache_manager", None)
    places = {"Scheduler": scheduler, "KVCacheManager": manager, "BlockPool": getattr(manager, "block_pool", None)}
    lacks = [
        f"{surface.name}.{name}"
        for surface in SURFACES
        if GUEST in surface.adapters and surface.name in places
        for name in (member.partition("(")[0] for member in surface.members)
        if not hasattr(places[surface.name], name)
    ]
    if lacks:
        raise ConfigError(
            f"vLLM {vllm_version() or 'of an unknown version'} has not what Batchwright's guest needs of its "
            f"scheduler: {', '.join(lacks)}; it was run with vllm{tested_range()}"
        )


def _has(value: Any, member: str) -> bool:
    """Whether a class has a member, whoever sets it, and that takes the parameters."""
    name, _, rest = member.partition("(")
    if not hasattr(value, name) and name not in _names(value):
        return False
    function = getattr(value, name, None)
    if not rest or not callable(function):
        return not rest
    taken = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return True
    return all(parameter in taken for parameter in re.split(r", *", rest.rstrip(")")))


def _names(value: Any) -> set[str]:
    """All that a class has: what stands in it, its fields, and what its methods set on ``self``.

    Of a function, what it sets on what it is given.
    """
    names = set(dir(value))
    for cls in getattr(value, "__mro__", ()):
        names |= set(getattr(cls, "__annotations__", ()))
        if cls.__module__.partition(".")[0] == "vllm":
            names |= _set_on(cls, {"self"})
    if inspect.isfunction(value):
        names |= _set_on(value, set(inspect.signature(value).parameters))
    if dataclasses.is_dataclass(value):
        names |= {field.name for field in dataclasses.fields(value)}
    return names


def _set_on(code: Any, holders: set[str]) -> set[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return set()
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in holders
    }


def main() -> int:
    """Print what the installed vLLM lacks; the exit code is 1 where it lacks something."""
    lacks = missing()
    print(json.dumps({"version": vllm_version(), "missing": [one._asdict() for one in lacks]}))
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
