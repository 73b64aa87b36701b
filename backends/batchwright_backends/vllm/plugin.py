"""The entry point of vLLM as a backend of the lab: ``vllm:MODEL``. Importing it imports no vLLM."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchwright.backend import Backend, BackendEntry, BackendSettings
from batchwright.errors import BackendError
from batchwright.hookspecs import hookimpl

if TYPE_CHECKING:
    from batchwright.config import EngineConfig
    from batchwright.lab.run_record import RunRecord
    from batchwright.lab.workload import Workload


def missing_vllm() -> str | None:
    """None, or in one sentence why vLLM cannot run here and what to do. Imports no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed: pip install 'batchwright[vllm]', or a build of vLLM for this machine beside it"
    return None


def _create(settings: BackendSettings) -> Backend:
    raise BackendError(
        f"vllm:{settings.target} has an engine of its own, vLLM's, so there is nothing that Batchwright's engine could "
        "drive: batchwright run, ab and sweep take it; for this, use cpu:MODEL, cuda:MODEL or a simulator"
    )


def _run_arm(config: EngineConfig, workload: Workload, options: Mapping[str, Any]) -> RunRecord:
    reason = missing_vllm()
    if reason is not None:
        raise BackendError(f"{config.backend} cannot run here: {reason}")
    from batchwright_backends.vllm.lab.process import run_elsewhere

    return run_elsewhere(config, workload, options)


@hookimpl
def register_backends() -> Mapping[str, BackendEntry]:
    """The backend ``vllm``."""
    return {
        "vllm": BackendEntry(
            create=_create,
            summary="vLLM's own engine, in a process for each run, under a policy; observe: vLLM's own scheduler",
            syntax="vllm:MODEL",
            available=missing_vllm,
            run_arm=_run_arm,
            packages=("vllm", "torch", "transformers"),
        )
    }
