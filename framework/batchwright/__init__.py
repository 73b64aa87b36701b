"""Batchwright: LLM-inference scheduling policies as plugins.

The engine is the mechanism: queues, KV blocks, budgets, execution. A policy is a plugin: it decides admission, chunking
and preemption.
"""

from batchwright.async_engine import AsyncEngine
from batchwright.backend import (
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
from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import (
    BackendError,
    BatchwrightError,
    CasesError,
    ComparisonError,
    ConfigError,
    InfeasibleRequestError,
    InvalidRequestError,
    PluginError,
    PolicyError,
    RefusedRequestError,
    RequestError,
    UnknownRequestError,
    WorkloadError,
)
from batchwright.hookspecs import HOLD, Refusal, hookimpl
from batchwright.limits import Limits
from batchwright.llm import LLM
from batchwright.outputs import CompletionOutput, RequestOutput
from batchwright.policy import Params, Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.request import SLO, Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.step import Step
from batchwright.version import HOOKSPEC_VERSION, __version__

__all__ = [
    "HOLD",
    "HOOKSPEC_VERSION",
    "LLM",
    "SLO",
    "AsyncEngine",
    "Backend",
    "BackendEntry",
    "BackendError",
    "BackendSettings",
    "Batch",
    "BatchwrightError",
    "BlockManager",
    "Capacity",
    "CasesError",
    "ComparisonError",
    "CompletionOutput",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "InfeasibleRequestError",
    "InvalidRequestError",
    "Limits",
    "Params",
    "PluginError",
    "Policy",
    "PolicyError",
    "PrefixCache",
    "RealClock",
    "Refusal",
    "RefusedRequestError",
    "Request",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Scheduler",
    "Step",
    "StepResult",
    "UnknownRequestError",
    "VirtualClock",
    "WorkloadError",
    "__version__",
    "hookimpl",
]
