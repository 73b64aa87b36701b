"""The entry point of the torch backend: ``cpu:MODEL`` and ``cuda:MODEL``. Importing it imports no torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from batchwright.backend import Backend, BackendEntry, BackendSettings
from batchwright.errors import BackendError
from batchwright.hookspecs import hookimpl

# Device nodes of the NVIDIA driver, of the AMD one (whose torch answers to "cuda" as well), and of WSL.
_GPU_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_USE_CPU = "use cpu:MODEL instead"
# Attention kernels that need a package, in the order in which they are tried, and the packages of which one is enough.
_ATTENTION = {
    "flash_attn": ("flash_attn_interface", "fa3_fwd_interface", "flash_attn"),
    "triton": ("triton",),
}
_PACKAGES = ("torch", "transformers")


def missing_packages() -> str | None:
    """None, or in one sentence which package is missing and how to get it."""
    missing = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} not installed: pip install 'batchwright[torch]'"


def missing_gpu() -> str | None:
    """None, or in one sentence why no CUDA device can be used and what to do. Imports no torch."""
    if (reason := missing_packages()) is not None:
        return reason
    torch = sys.modules.get("torch")
    if torch is not None:
        return None if torch.cuda.is_available() else f"torch finds no CUDA device: {_USE_CPU}"
    try:
        build = version("torch")
    except PackageNotFoundError:
        build = ""
    if build.endswith("+cpu"):
        return f"torch {build} is a build without CUDA: install a CUDA build of torch (pytorch.org), or {_USE_CPU}"
    if sys.platform != "win32" and not any(map(os.path.exists, _GPU_NODES)):
        return f"this machine has no GPU device node ({', '.join(_GPU_NODES)}): {_USE_CPU}"
    return None


def attention_packages() -> str:
    """In one clause, which attention kernels have their package installed. Imports none."""
    found = [name for name, packages in _ATTENTION.items() if any(map(importlib.util.find_spec, packages))]
    return f"attention by {' or '.join([*found, 'sdpa'])}"


def _create(device: str, settings: BackendSettings) -> Backend:
    reason = missing_gpu() if device == "cuda" else missing_packages()
    if reason is not None:
        raise BackendError(f"{device}:{settings.target} cannot run here: {reason}")
    from batchwright_backends.torch.models import resolve

    resolve(settings.target)  # what is no model is said before torch is imported, which takes seconds
    from batchwright_backends.torch.backend import TorchBackend

    return TorchBackend.create(device, settings)


@hookimpl
def register_backends() -> Mapping[str, BackendEntry]:
    """The backends ``cpu`` and ``cuda``: one runner on two devices."""
    model = "a real model (folder, .gguf file, owner/name on the hub, or smollm2-135m)"
    return {
        "cpu": BackendEntry(
            create=partial(_create, "cpu"),
            summary=f"{model} on CPU, by torch",
            syntax="cpu:MODEL",
            available=missing_packages,
            packages=_PACKAGES,
        ),
        "cuda": BackendEntry(
            create=partial(_create, "cuda"),
            summary=f"{model} on a GPU, by torch; {attention_packages()}",
            syntax="cuda:MODEL",
            available=missing_gpu,
            packages=(*_PACKAGES, "triton", "flash_attn"),
        ),
    }
