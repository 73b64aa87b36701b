"""What a simulator's name says: ``MODEL@GPU``, ``MODEL@GPUxTP``, or a YAML file that describes all of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PositiveInt

from batchwright.errors import ConfigError
from batchwright_backends.sim import SYNTAX
from batchwright_backends.sim.checked import Checked, check
from batchwright_backends.sim.gpus import Gpu, find_gpu, has_gpu, make_gpu
from batchwright_backends.sim.models import find_model
from batchwright_backends.sim.shape import ModelShape

_EXAMPLES = "such as sim:llama-3.1-8b@h100, sim:llama-3.1-70b@a100x4 or sim:machine.yaml"


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on GPUs.

    Attributes:
        shape: the model.
        gpu: each of the GPUs.
        tensor_parallel: GPUs that share every layer.
        options: the backend's options that a file sets; those of the configuration go before them.
    """

    shape: ModelShape
    gpu: Gpu
    tensor_parallel: int
    options: Mapping[str, Any]


class _MachineFile(Checked):
    """What a ``sim:FILE`` holds."""

    model: str | dict[str, Any]
    gpu: str | dict[str, Any]
    tensor_parallel: PositiveInt = 1
    options: dict[str, Any] = Field(default_factory=dict)


def parse_target(target: str) -> Machine:
    """The machine that the part of a backend's name after ``sim:`` says.

    Raises:
        ConfigError: neither form, an unknown model or GPU, a file that cannot be read, or a model that does not
            split over so many GPUs.
    """
    if target.lower().endswith((".yaml", ".yml")):
        machine = _read(Path(target).expanduser())
    else:
        model, at, where = target.rpartition("@")
        if not at or not model or not where:
            raise ConfigError(f"sim:{target} says no {'model' if at and where else 'GPU'}; write {SYNTAX}, {_EXAMPLES}")
        gpu, tensor_parallel = _split_gpu(where)
        machine = Machine(find_model(model), find_gpu(gpu), tensor_parallel, {})
    machine.shape.check_tensor_parallel(machine.tensor_parallel)
    return machine


def _split_gpu(where: str) -> tuple[str, int]:
    """``h100x4`` is four; ``rtx4090`` is one, though it ends like a count."""
    match = re.fullmatch(r"(.+)x(\d+)", where, re.IGNORECASE)
    if match is None or has_gpu(where):
        return where, 1
    gpu, count = match[1], int(match[2])
    if not has_gpu(gpu) and count >= 100:  # a model number of a GPU that we do not know
        return where, 1
    if count < 1:
        raise ConfigError(f"{where!r} asks for {count} GPUs; write {SYNTAX}, {_EXAMPLES}")
    return gpu, count


def _read(path: Path) -> Machine:
    where = str(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {where!r}; write {SYNTAX}, {_EXAMPLES}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{where!r} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where!r} must hold a mapping with the keys model and gpu")
    file = check(_MachineFile, values, where)
    if isinstance(file.model, str):
        beside = path.parent / file.model  # a path in a file is relative to the file
        shape = find_model(str(beside) if beside.exists() else file.model)
    else:
        base = file.model.get("base")
        below = find_model(str(base)).model_dump() if base is not None else {"name": path.stem}
        given = {name: value for name, value in file.model.items() if name != "base"}
        shape = check(ModelShape, {**below, **given}, f"model of {where}")
    gpu = find_gpu(file.gpu) if isinstance(file.gpu, str) else make_gpu(file.gpu, f"gpu of {where}")
    return Machine(shape, gpu, file.tensor_parallel, file.options)
