"""Which dtype a model runs in."""

from __future__ import annotations

import torch

from batchwright.errors import BackendError

# The first generation of NVIDIA GPUs that computes in bfloat16 is Ampere.
_BFLOAT16_FROM = (8, 0)


def choose_dtype(wanted: str | None, device: torch.device) -> torch.dtype:
    """The dtype that was asked for; where none was, float32 on CPU, and on a GPU bfloat16, or float16 if it lacks that.

    Args:
        wanted: the option ``dtype``.
        device: of the model.

    Raises:
        BackendError: the device does not compute in it; the message names those in which it does.
    """
    capability = torch.cuda.get_device_capability(device) if _is_nvidia(device) else None
    lacks_bfloat16 = capability is not None and capability < _BFLOAT16_FROM
    if wanted is None:
        if device.type == "cpu":
            return torch.float32
        return torch.float16 if lacks_bfloat16 else torch.bfloat16
    if wanted == "bfloat16" and lacks_bfloat16:
        assert capability is not None
        raise BackendError(
            f"backend_options.dtype is bfloat16, and {torch.cuda.get_device_name(device)} (compute capability "
            f"{capability[0]}.{capability[1]}) does not compute in it: Ampere (8.0) was the first to do so. Use "
            "float16 or float32"
        )
    dtype: torch.dtype = getattr(torch, wanted)
    return dtype


def _is_nvidia(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None
