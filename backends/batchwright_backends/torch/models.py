"""Where a model comes from: a folder, a GGUF file, the hub, or a well-known name.

``python -m batchwright_backends.torch.models smollm2-135m`` makes a well-known model ready and prints its folder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from batchwright.errors import BatchwrightError, ConfigError, did_you_mean
from batchwright_backends.torch import smollm2

WELL_KNOWN: Mapping[str, Callable[[], Path]] = {smollm2.NAME: smollm2.ensure}
"""For each name what makes the model ready and gives its folder."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What transformers loads a model from.

    Attributes:
        path: a folder, or a hub name.
        gguf_file: name of the GGUF file in it, or None.
        is_local: ``path`` is a folder; nothing is fetched.
    """

    path: str
    gguf_file: str | None = None
    is_local: bool = True


def ensure_model(name: str) -> Path:
    """The folder of a well-known model, in transformers' format; downloads or converts it once where it is not there.

    Raises:
        ConfigError: there is no such name.
        BackendError: it is not here and cannot be fetched; the message says what to do.
    """
    if name not in WELL_KNOWN:
        raise ConfigError(f"{name!r} is no well-known model; {did_you_mean(name, WELL_KNOWN)}")
    return WELL_KNOWN[name]()


def resolve(target: str) -> ModelSource:
    """What a backend's target means.

    Args:
        target: a well-known name, a folder, a ``.gguf`` file, or a hub name ``owner/name``. Something that exists on
            disk goes before a hub name.

    Raises:
        ConfigError: it is none of these.
    """
    if not target:
        raise ConfigError(f"no model is named; write cpu:MODEL with a folder, a .gguf file, {_names()}")
    if target in WELL_KNOWN:
        return ModelSource(str(ensure_model(target)))
    path = Path(target).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"model {target!r} is a file, and not a .gguf; give a folder, a .gguf file, {_names()}")
        return ModelSource(str(path.parent), gguf_file=path.name)
    if target[0] in "/.~" or target.endswith((".gguf", "/")) or target.count("/") > 1:
        raise ConfigError(f"model {target!r}: there is no such file or folder")
    if _HUB_NAME.fullmatch(target):
        return ModelSource(target, is_local=False)
    raise ConfigError(
        f"model {target!r} is neither a file or folder here nor a well-known name; {did_you_mean(target, WELL_KNOWN)} "
        "A model on the hub is written owner/name"
    )


def _folder(path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(str(path))
    files = sorted(p.name for p in path.iterdir())
    ggufs = [name for name in files if name.endswith(".gguf")]
    if ggufs:
        raise ConfigError(f"model folder {path} holds GGUF files: name one, such as {path / ggufs[0]}")
    holds = f"it holds {', '.join(files[:5])}{', …' if len(files) > 5 else ''}" if files else "it is empty"
    raise ConfigError(
        f"model folder {path} has no config.json ({holds}); a folder in transformers' format has config.json and "
        "*.safetensors, as save_pretrained writes them"
    )


def _names() -> str:
    return f"a hub name (owner/name), or a well-known name ({', '.join(WELL_KNOWN)})"


def main(arguments: list[str]) -> int:
    """Make each named model ready, and print its folder. Returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: python -m {__spec__.name if __spec__ else __name__} NAME...\n\nNAMEs: {', '.join(WELL_KNOWN)}")
        return 0 if arguments else 2
    try:
        for name in arguments:
            print(ensure_model(name))
    except BatchwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
