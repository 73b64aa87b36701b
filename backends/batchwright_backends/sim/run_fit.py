"""Fits a machine to the recorded steps of a real run: kernels, host and everything between."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchwright.calibration import Residual
from batchwright.errors import ConfigError
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.fitting import Floats, least_squares, residual
from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.load import StepLoad
from batchwright_backends.sim.recorded_steps import RecordedStep
from batchwright_backends.sim.shape import ModelShape

MIN_STEPS = 40
"""Fewer steps do not tell the constants apart."""
_MAX_STEPS = 1000  # that one fit looks at; more of them say little more and take longer
_TINY_S = 1e-9  # where a constant of the host starts that may be nothing
_PRIOR = 0.01
_POWERS = (1.0, 32.0)  # sum, and maximum: beyond them a power says nothing more


@dataclass(frozen=True, slots=True)
class RunFit:
    """What a fit to recorded steps gave.

    Attributes:
        gpu: the machine.
        constants: what was fitted, by ``term.constant``.
        held_out, fitted: residual by regime (``decode``, ``prefill``, ``mixed``, ``all``).
        total: predicted over measured time of all steps that no fit saw, less 1.
    """

    gpu: Gpu
    constants: Mapping[str, float]
    held_out: Mapping[str, Residual]
    fitted: Mapping[str, Residual]
    total: float


def plain_machine(name: str, shape: ModelShape, steps: Sequence[RecordedStep], memory_bytes: int) -> Gpu:
    """Where a fit starts that knows nothing of a machine: no launches, no tiles, what the extremes of a run suggest.

    The step with most tokens suggests how fast it computes, the fastest one how fast it reads weights.
    """
    largest = max(steps, key=lambda s: s.num_tokens)
    fastest = min(s.time_s for s in steps)
    flops = 2 * shape.num_parameters * largest.num_tokens / largest.time_s
    bandwidth = shape.weight_bytes / fastest
    assumed = {"source": "assumed: its share lies in other terms"}
    return Gpu.model_validate(
        {
            "name": name,
            "title": f"the machine of a recorded run ({name})",
            "uncalibrated": False,
            "memory_bytes": memory_bytes,
            "peak_flops": flops,
            "peak_bandwidth": bandwidth,
            "gemm": {"flops": flops, "bandwidth": bandwidth, "power": 2.0, "floor_s": 0.0},
            "decode_attention": {
                "bandwidth": bandwidth,
                "head_row_s": 0.0,
                "row_power": 1.0,
                "floor_s": 0.0,
                "key_s": 0.0,
                "power": 1.0,
            },
            "chunk_attention": {
                "flops": flops,
                "io_bandwidth": 1e3 * bandwidth,
                "head_row_s": 0.0,
                "floor_s": 0.0,
                "key_s": 0.0,
                "power": 1.0,
                "tile": 1,
            },
            "elementwise": {"layer_floor_s": 0.0, "bandwidth": bandwidth},
            "sampling": {"floor_s": 0.0, "logits_per_s": bandwidth / 4, "power": 1.0, **assumed},
            "all_reduce": {"latency_s": 0.0, "bandwidth": bandwidth, "source": "assumed: one device"},
            "host": {"step_s": fastest / 10, "request_s": fastest / 100},
        }
    )


def fit_steps(shape: ModelShape, steps: Sequence[RecordedStep], start: Gpu, tensor_parallel: int = 1) -> RunFit:
    """Constants with which the cost model gives the times of recorded steps.

    Times are fitted by their logarithms, without every fifth step; then all are scaled so that their sum is right,
    since what a user waits for is a sum of steps and their errors are skewed (a machine is disturbed to one side).

    Args:
        shape: the model that ran.
        steps: of a run, in order.
        start: where the fit starts; what it does not fit keeps these constants.
        tensor_parallel: GPUs that shared every layer.

    Raises:
        ConfigError: too few steps.
    """
    if len(steps) < MIN_STEPS:
        raise ConfigError(
            f"the run has {len(steps)} steps whose batch is certain, and a fit needs {MIN_STEPS}: record a longer one"
        )
    held_out = steps[4::5]
    train = [step for i, step in enumerate(steps) if i % 5 != 4]
    seen = train[:: math.ceil(len(train) / _MAX_STEPS)]
    cost = CostModel(shape, start, tensor_parallel)
    loads = [_load(cost, step) for step in seen]
    kinds = {step.regime for step in seen}
    guess = {
        "gemm.flops": start.gemm.flops,
        "gemm.bandwidth": start.gemm.bandwidth,
        "gemm.power": start.gemm.power,
        "elementwise.bandwidth": start.elementwise.bandwidth,
        "decode_attention.bandwidth": start.decode_attention.bandwidth,
        "host.step_s": max(start.host.step_s, _TINY_S),
        "host.request_s": max(start.host.request_s, _TINY_S),
    }
    if kinds != {"decode"}:
        guess["chunk_attention.flops"] = start.chunk_attention.flops

    def predict(constants: Mapping[str, float]) -> Floats:
        model = CostModel(shape, _with(start, constants), tensor_parallel)
        return np.array([model.step_s(load) for load in loads], dtype=np.float64)

    constants = least_squares(
        predict, guess, np.array([step.time_s for step in seen]), weights=_weights(seen), prior=_PRIOR
    )
    slower = sum(step.time_s for step in seen) / float(predict(constants).sum())
    gpu = _slowed(_with(start, constants), slower)
    final = CostModel(shape, gpu, tensor_parallel)
    measured = sum(step.time_s for step in held_out)
    return RunFit(
        gpu,
        {name: getattr(getattr(gpu, name.partition(".")[0]), name.partition(".")[2]) for name in constants},
        _residuals(final, held_out),
        _residuals(final, train),
        sum(final.step_s(_load(final, step)) for step in held_out) / measured - 1,
    )


def _weights(steps: Sequence[RecordedStep]) -> Floats:
    """How much each step counts: n steps of a kind and size count as the root of n, so that rare ones are heard."""
    kinds = [(step.regime, step.num_tokens.bit_length()) for step in steps]
    found = Counter(kinds)
    return np.array([found[kind] ** -0.5 for kind in kinds], dtype=np.float64)


def _load(cost: CostModel, step: RecordedStep) -> StepLoad:
    return cost.load(step.num_computed, step.num_scheduled, step.num_tokens, step.num_sampled)


def _residuals(cost: CostModel, steps: Sequence[RecordedStep]) -> dict[str, Residual]:
    found: dict[str, Residual] = {}
    for regime in ("decode", "prefill", "mixed", "all"):
        chosen = [step for step in steps if regime in (step.regime, "all")]
        if chosen:
            found[regime] = residual([cost.step_s(_load(cost, s)) for s in chosen], [s.time_s for s in chosen])
    return found


def _with(gpu: Gpu, constants: Mapping[str, float]) -> Gpu:
    """A GPU with constants given by ``term.constant``."""
    by_term: dict[str, dict[str, float]] = {}
    for name, value in constants.items():
        term, _, constant = name.partition(".")
        if constant == "power":
            value = min(max(value, _POWERS[0]), _POWERS[1])
        by_term.setdefault(term, {})[constant] = value
    return gpu.model_copy(
        update={term: getattr(gpu, term).model_copy(update=values) for term, values in by_term.items()}
    )


def _slowed(gpu: Gpu, factor: float) -> Gpu:
    """A GPU on which every step takes ``factor`` times as long."""
    changed: dict[str, float] = {}
    for term in ("gemm", "decode_attention", "chunk_attention", "elementwise", "sampling", "all_reduce", "host"):
        for name, value in getattr(gpu, term):
            if name.endswith("_s") and not name.endswith("_per_s"):
                changed[f"{term}.{name}"] = value * factor
            elif name in ("flops", "bandwidth", "io_bandwidth", "logits_per_s"):
                changed[f"{term}.{name}"] = value / factor
    return _with(gpu, changed)
