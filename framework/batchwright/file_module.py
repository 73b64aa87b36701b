"""Python files outside any package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from batchwright.errors import ConfigError


def import_file(path: str, kind: str, where: str = "") -> ModuleType:
    """Import a file.

    Args:
        path: of the file.
        kind: what is looked for in it: files of one name are other modules for each kind.
        where: what errors begin with.

    Raises:
        ConfigError: it is no Python file, or its code raised.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{where}there is no file {path}")
    name = f"_batchwright_{kind}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic and dataclasses look modules up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{where}{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
