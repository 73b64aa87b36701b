"""From what a command line names to the policies to check: an installed one, a file's, a module's."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from batchwright.active_policy import is_policy_class
from batchwright.errors import ConfigError, did_you_mean
from batchwright.file_module import import_file
from batchwright.plugins import Plugins
from batchwright.policy import Policy
from batchwright.resolve import parse_arm
from batchwright.testing.subject import Subject

FORMS = "NAME[:param=value,...], file.py[:Class[:param=value,...]], or module[:Class[:param=value,...]]"


def find_subjects(text: str, installed: Plugins) -> list[Subject]:
    """The policies that ``text`` names: one, or all of a file or module.

    Args:
        text: see :data:`FORMS`.
        installed: where names are looked up.

    Raises:
        ConfigError: there is nothing of that name, or no policy in it.
        PluginError: a hook of a policy is wrong.
    """
    head, _, rest = text.partition(":")
    if head.endswith(".py"):
        if rest:
            return [Subject(text, installed=installed)]
        return _all_of(import_file(head, "check"), head)
    if head in installed.policies:
        return [Subject(text, installed=installed)]
    module = _import(head, installed)
    if not rest:
        return _all_of(module, head)
    name, _, values = rest.partition(":")
    found = dict(_policies_of(module))
    if name not in found:
        raise ConfigError(f"module {head} has no policy class {name!r}; {did_you_mean(name, found)}")
    wanted = {k: v for k, v in parse_arm(f"{name}:{values}").items() if k != "use"}
    cls = found[name]
    return [Subject(cls.from_values(wanted) if wanted else cls, spec=text)]


def _all_of(module: ModuleType, where: str) -> list[Subject]:
    found = dict(_policies_of(module))
    if not found:
        raise ConfigError(f"{where} has no policy: a class that subclasses batchwright.Policy")
    return [Subject(cls, spec=f"{where}:{name}") for name, cls in found.items()]


def _policies_of(module: ModuleType) -> Iterator[tuple[str, type[Policy]]]:
    """Public policy classes that a module defines; of a package, those that it offers, else those of its modules."""
    found = list(_defined_in(module))
    if not found and hasattr(module, "__path__"):
        for part in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            found += _defined_in(importlib.import_module(part.name))
    yield from found


def _defined_in(module: ModuleType) -> Iterator[tuple[str, type[Policy]]]:
    for name, value in vars(module).items():
        home = getattr(value, "__module__", "")
        is_own = home == module.__name__ or home.startswith(f"{module.__name__}.")
        if is_policy_class(value) and is_own and not name.startswith("_"):
            yield name, value


def _import(name: str, installed: Plugins) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        is_there = not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{error.name}.")
        if is_there:
            raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error
    raise ConfigError(
        f"there is no policy and no module {name!r}; policies: {did_you_mean(name, installed.policies)}; write {FORMS}"
    )
