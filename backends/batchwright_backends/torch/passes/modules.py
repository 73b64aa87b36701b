"""Finding and replacing modules of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def is_bound(module: nn.Module) -> bool:
    """Whether more hangs on it than its own code tells: listeners to its calls, or weights that are shards of larger
    ones. Tensor parallel layers are made so, and must stay as they are.
    """
    made: Any = module
    sharded = any(hasattr(weight, "to_local") for weight in made.parameters(recurse=False))
    return bool(made._forward_hooks or made._forward_pre_hooks) or sharded


def replace(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    """Put modules in the places of those of these names."""
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
