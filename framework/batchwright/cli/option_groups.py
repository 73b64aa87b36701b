"""Groups of options that several commands share, written once as dataclasses."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def takes_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take dataclasses of options: each becomes the options of its fields.

        @dataclass
        class OutputOptions:
            quiet: Annotated[bool, typer.Option("--quiet")] = False

        @app.command()
        @takes_groups
        def run(arm: str, output: OutputOptions) -> None: ...

    Fields have defaults, and no two groups of a command share a field name.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        inner = typing.get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = field.default if field.default is not MISSING else inspect.Parameter.empty
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name]
                )
            )

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        made = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return function(**values, **made)

    # typer reads both, depending on its version.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
