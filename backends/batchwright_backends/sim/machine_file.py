"""Writes a machine as a file for ``sim:FILE``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

_NOTHING = 1e-12  # a fit in logarithms ends at such a value where it means 0


def machine_text(
    model: str | Mapping[str, Any],
    gpu: Mapping[str, Any],
    *,
    tensor_parallel: int = 1,
    options: Mapping[str, Any] | None = None,
    says: Sequence[str] = (),
) -> str:
    """The YAML of a machine.

    Args:
        model: a name or path, or fields of a shape.
        gpu: fields of a GPU, ``base`` among them or all.
        tensor_parallel: GPUs that share every layer.
        options: of the backend.
        says: sentences for a comment at its head.
    """
    values: dict[str, Any] = {"model": model if isinstance(model, str) else dict(model), "gpu": _short(gpu)}
    if tensor_parallel > 1:
        values["tensor_parallel"] = tensor_parallel
    if options:
        values["options"] = dict(options)
    head = "".join(f"# {line}\n" for sentence in says for line in sentence.splitlines())
    return head + as_yaml(values)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Values in the order given, floats as YAML 1.1 reads them back."""
    return str(yaml.dump(_short(values), Dumper=_Dumper, sort_keys=False, width=116))


def _short(value: Any) -> Any:
    """Plain values; floats to five digits, and what a fit drove to nothing is nothing."""
    if isinstance(value, Mapping):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) > _NOTHING else 0.0
    return value


class _Dumper(yaml.SafeDumper):
    """Writes large and small floats in scientific notation, as YAML 1.1 reads it back."""


def _represent(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = f"{value:.4e}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value!r}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent)
