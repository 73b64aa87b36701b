"""The check of a policy's parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from batchwright.errors import ConfigError
from batchwright.policy import Policy
from batchwright.testing.checks import check, need_runs, same
from batchwright.testing.kit import Kit
from batchwright.testing.report import Failed
from batchwright.testing.run import Run
from batchwright.testing.subject import Subject

_NO_SUCH = "no_such_parameter"


@check
def params(kit: Kit) -> None:
    """Parameters have a JSON Schema, refuse unknown keys, and make the same policy again."""
    for policy in kit.subject.policies():
        _schema(policy)
        _unknown_refused(policy)
        values = policy.params.model_dump(mode="json")
        again = _remade(policy, values)
        for changed in _changes(policy, values):
            _remade(policy, changed)
        if len(kit.subject.policies()) == 1 and kit.is_repeatable:
            copies = Subject(partial(type(again).from_values, values), kit.subject.make_plugins())
            for run in (*kit.roomy[:2], *kit.tight[:1]):
                other = Run(copies, run.scenario, run.options)
                same("the same decisions of from_values(params.model_dump())", run, other)
            if not any(run.decisions for run in (*kit.roomy[:2], *kit.tight[:1])):
                need_runs(kit, ())


def _schema(policy: Policy) -> None:
    try:
        schema = type(policy).Params.model_json_schema()
        json.dumps(schema)
    except Exception as error:
        raise Failed(
            f"expected Params to have a JSON Schema; model_json_schema() raised {type(error).__name__}: {error}"
        ) from None


def _unknown_refused(policy: Policy) -> None:
    values = {**policy.params.model_dump(mode="json"), _NO_SUCH: 1}
    try:
        type(policy).from_values(values)
    except ConfigError:
        return
    except Exception as error:
        raise Failed(
            f"expected from_values to refuse an unknown key with a ConfigError; it raised {type(error).__name__}: "
            f"{error} (its __init__ takes params and passes them on: super().__init__(params, **values))"
        ) from None
    raise Failed(f"expected from_values to refuse the unknown key {_NO_SUCH!r}; it took it")


def _remade(policy: Policy, values: dict[str, Any]) -> Policy:
    kind = type(policy)
    try:
        again = kind.from_values(json.loads(json.dumps(values)))
    except Exception as error:
        raise Failed(
            f"expected from_values({values}) to make the policy; it raised {type(error).__name__}: {error}"
        ) from None
    kept = again.params.model_dump(mode="json")
    if kept != values:
        raise Failed(f"expected params to be what was given, {values}; they are {kept}")
    return again


def _changes(policy: Policy, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same parameters with one of them another, for each."""
    model = type(policy).Params
    for name, field in model.model_json_schema().get("properties", {}).items():
        for value in _others(field, values.get(name)):
            changed = {**values, name: value}
            try:
                valid = model.model_validate(changed).model_dump(mode="json")
            except ValueError:
                continue
            if valid != values:
                yield valid
                break


def _others(field: dict[str, Any], value: Any) -> Iterator[Any]:
    for part in field.get("anyOf", [field]):
        yield from part.get("enum", ())
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, value / 2, value - 1)
    else:
        yield from (1, 0.5, "another", True)
