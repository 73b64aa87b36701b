"""Everything Batchwright raises on purpose.

BatchwrightError
├── ConfigError                 a setting, a config file or the command line
├── PluginError                 a plugin that cannot be loaded or bound
├── RequestError                one request; nothing else in the engine was touched
│   ├── InvalidRequestError     a field is out of its range
│   ├── InfeasibleRequestError  it could never fit this engine, however long it waited
│   ├── RefusedRequestError     a policy's ``arrival`` hook refused it
│   └── UnknownRequestError     no request of that id is here
├── PolicyError                 a policy broke a rule of the contract
├── BackendError                a backend cannot start, or failed in a step
├── ExperimentError             some runs of an experiment failed; it holds the others
├── WorkloadError               a trace or a workload description
├── CasesError                  recorded decisions that cannot be read
└── ComparisonError             arms that must not be compared
"""

from __future__ import annotations

import difflib
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any


class BatchwrightError(Exception):
    """Base of all errors that Batchwright raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some take more than their message: an exception would be pickled as a call with the message alone.
        return _unpickled, (type(self), self.args, dict(vars(self)))


def _unpickled(kind: type[BatchwrightError], args: tuple[Any, ...], state: dict[str, Any]) -> BatchwrightError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


class ConfigError(BatchwrightError):
    """A setting, a config file or a command line is wrong; the message names the field and the choices."""


class PluginError(BatchwrightError):
    """A plugin cannot be loaded or bound; the message names plugin, distribution, cause and remedy."""


class RequestError(BatchwrightError, ValueError):
    """One request cannot be taken; nothing else in the engine was touched."""


class InvalidRequestError(RequestError):
    """A field of the request is out of its range."""


class InfeasibleRequestError(RequestError):
    """The request could never fit this engine, however long it waited."""


class RefusedRequestError(RequestError):
    """A policy's ``arrival`` hook refused the request.

    Attributes:
        reason: what the policy gave as its reason.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownRequestError(RequestError, KeyError):
    """No request of that id is waiting, running or lately finished here."""

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return str(self.args[0])


class PolicyError(BatchwrightError):
    """A policy broke a rule of the contract.

    Attributes:
        plugin: name of the policy or plugin whose decision it was.
        hook: the hook that decided.
        step: index of the step.
        rule: the rule broken, one word of a fixed list (see ``docs/hooks.md``).
        value: what was decided, as it was returned.
    """

    def __init__(self, message: str, *, plugin: str, hook: str, step: int, rule: str, value: object = None) -> None:
        super().__init__(f"policy {plugin!r}, hook {hook!r}, step {step}, rule {rule!r}: {message}")
        self.plugin = plugin
        self.hook = hook
        self.step = step
        self.rule = rule
        self.value = value


class Written(Exception):
    """Raised into a hook, in strict mode: it tried to write to what it was shown, or reached for something private.

    The core makes a ``PolicyError`` of it, with rule ``write``.

    Attributes:
        what: what it tried.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"it {what}: what a hook is shown is read-only (strict mode); keep state in the policy itself")
        self.what = what


class BackendError(BatchwrightError):
    """A backend cannot start, or failed while it executed a step."""


class WorkloadError(BatchwrightError):
    """A trace or a workload description is wrong; the message gives file and row."""


class CasesError(BatchwrightError):
    """A file of recorded decisions cannot be read."""


class ExperimentError(BatchwrightError):
    """Some runs of an experiment failed; the message names the arm and seed of each, and what went wrong.

    Attributes:
        runs: records of the runs that did not fail.
        errors: the errors, in the order of the runs.
    """

    def __init__(self, message: str, runs: Sequence[Any], errors: Sequence[Exception]) -> None:
        super().__init__(message)
        self.runs = tuple(runs)
        self.errors = tuple(errors)


class ComparisonError(BatchwrightError):
    """Arms that must not be compared; the message says which requests differ, and in what."""


def place_of(error: BaseException) -> str:
    """`` (file.py, line 8)``: the last line of a plugin's code that an error came through; nothing if there is none.

    Args:
        error: one that was raised.
    """
    found = ""
    at = error.__traceback__
    while at is not None:
        code, module = at.tb_frame.f_code, str(at.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_PLUGINS and not _is_of_python(code.co_filename):
            found = f" ({PurePath(code.co_filename).name}, line {at.tb_lineno})"
        at = at.tb_next
    return found


_NOT_PLUGINS = ("batchwright", "batchwright_backends", "pluggy")


def _is_of_python(file: str) -> bool:
    path = PurePath(file)
    return path.is_relative_to(sysconfig.get_path("stdlib")) and "site-packages" not in path.parts


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A half sentence for an error message: the nearest valid names, else all of them.

    Args:
        name: what was given.
        choices: what is valid.
    """
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "choices: " + ", ".join(names) if names else "there are no choices"
