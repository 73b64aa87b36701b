"""Batchwright: LLM-inference scheduling policies as plugins.

The engine is the mechanism: queues, KV blocks, budgets, execution. A policy is a plugin: it decides admission, chunking
and preemption. Names are imported when they are first used, so that `import batchwright` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from batchwright.version import HOOKSPEC_VERSION, __version__

if TYPE_CHECKING:
    from batchwright.async_engine import AsyncEngine
    from batchwright.backend import (
        Ahead,
        Backend,
        BackendEntry,
        BackendSettings,
        Capacity,
        RealClock,
        StepResult,
        VirtualClock,
    )
    from batchwright.batch import Batch
    from batchwright.block_manager import BlockManager
    from batchwright.card import Card
    from batchwright.config import EngineConfig
    from batchwright.engine import Engine
    from batchwright.errors import (
        BackendError,
        BatchwrightError,
        CasesError,
        ComparisonError,
        ConfigError,
        ExperimentError,
        InfeasibleRequestError,
        InvalidRequestError,
        PluginError,
        PolicyError,
        RefusedRequestError,
        RequestError,
        UnknownRequestError,
        WorkloadError,
    )
    from batchwright.fleet.fleet import Fleet
    from batchwright.fleet.view import FleetView, ReplicaView
    from batchwright.hookspecs import HOLD, Refusal, hookimpl
    from batchwright.lazy_heap import LazyHeap
    from batchwright.leap import Leap
    from batchwright.limits import Limits
    from batchwright.llm import LLM
    from batchwright.logprobs import TokenLogprobs
    from batchwright.need import Need
    from batchwright.outputs import CompletionOutput, RequestOutput
    from batchwright.policy import Params, Policy
    from batchwright.predictor import Predictor, PredictorParams
    from batchwright.prefix_cache import PrefixCache
    from batchwright.ranked import Ordered, Ranked
    from batchwright.request import SLO, Request
    from batchwright.router import Router
    from batchwright.sampling_params import SamplingParams
    from batchwright.scheduler import Scheduler
    from batchwright.step import Step

_HOME = {
    "AsyncEngine": "batchwright.async_engine",
    "Ahead": "batchwright.backend",
    "Backend": "batchwright.backend",
    "BackendEntry": "batchwright.backend",
    "BackendSettings": "batchwright.backend",
    "Capacity": "batchwright.backend",
    "RealClock": "batchwright.backend",
    "StepResult": "batchwright.backend",
    "VirtualClock": "batchwright.backend",
    "Batch": "batchwright.batch",
    "BlockManager": "batchwright.block_manager",
    "Card": "batchwright.card",
    "EngineConfig": "batchwright.config",
    "Engine": "batchwright.engine",
    "BackendError": "batchwright.errors",
    "BatchwrightError": "batchwright.errors",
    "CasesError": "batchwright.errors",
    "ComparisonError": "batchwright.errors",
    "ConfigError": "batchwright.errors",
    "ExperimentError": "batchwright.errors",
    "InfeasibleRequestError": "batchwright.errors",
    "InvalidRequestError": "batchwright.errors",
    "PluginError": "batchwright.errors",
    "PolicyError": "batchwright.errors",
    "RefusedRequestError": "batchwright.errors",
    "RequestError": "batchwright.errors",
    "UnknownRequestError": "batchwright.errors",
    "WorkloadError": "batchwright.errors",
    "Fleet": "batchwright.fleet.fleet",
    "FleetView": "batchwright.fleet.view",
    "ReplicaView": "batchwright.fleet.view",
    "HOLD": "batchwright.hookspecs",
    "Refusal": "batchwright.hookspecs",
    "hookimpl": "batchwright.hookspecs",
    "LazyHeap": "batchwright.lazy_heap",
    "Leap": "batchwright.leap",
    "Limits": "batchwright.limits",
    "LLM": "batchwright.llm",
    "Need": "batchwright.need",
    "CompletionOutput": "batchwright.outputs",
    "RequestOutput": "batchwright.outputs",
    "Params": "batchwright.policy",
    "Policy": "batchwright.policy",
    "Predictor": "batchwright.predictor",
    "PredictorParams": "batchwright.predictor",
    "PrefixCache": "batchwright.prefix_cache",
    "Ordered": "batchwright.ranked",
    "Ranked": "batchwright.ranked",
    "SLO": "batchwright.request",
    "Request": "batchwright.request",
    "Router": "batchwright.router",
    "SamplingParams": "batchwright.sampling_params",
    "Scheduler": "batchwright.scheduler",
    "Step": "batchwright.step",
    "TokenLogprobs": "batchwright.logprobs",
}

__all__ = [
    "HOLD",
    "HOOKSPEC_VERSION",
    "LLM",
    "SLO",
    "Ahead",
    "AsyncEngine",
    "Backend",
    "BackendEntry",
    "BackendError",
    "BackendSettings",
    "Batch",
    "BatchwrightError",
    "BlockManager",
    "Capacity",
    "Card",
    "CasesError",
    "ComparisonError",
    "CompletionOutput",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "ExperimentError",
    "Fleet",
    "FleetView",
    "InfeasibleRequestError",
    "InvalidRequestError",
    "LazyHeap",
    "Leap",
    "Limits",
    "Need",
    "Ordered",
    "Params",
    "PluginError",
    "Policy",
    "PolicyError",
    "Predictor",
    "PredictorParams",
    "PrefixCache",
    "Ranked",
    "RealClock",
    "Refusal",
    "RefusedRequestError",
    "ReplicaView",
    "Request",
    "RequestError",
    "RequestOutput",
    "Router",
    "SamplingParams",
    "Scheduler",
    "Step",
    "StepResult",
    "TokenLogprobs",
    "UnknownRequestError",
    "VirtualClock",
    "WorkloadError",
    "__version__",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'batchwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
