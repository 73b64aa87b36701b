"""Fits what the host adds to a step to the request log of a real run, by replaying it.

A log says when each request began and ended, not what ran in which step. So the simulator runs the same requests under
the same limits and a policy that schedules as the real engine did, and the host's time is what makes the time per token
of each request come out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchwright.calibration import Residual
from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import RequestRecord, RunRecord, run_arm
from batchwright.plugins import load_plugins
from batchwright_backends.sim.fitting import Floats, huber, huber_weights, residual
from batchwright_backends.sim.request_log import LoggedRequest, RequestLog

_MIN_TOKENS = 8  # of an answer whose time per token says something
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class HostFit:
    """What a fit to a request log gave.

    Attributes:
        step_s, request_s: seconds a step, and for each request of it.
        held_out, fitted: residual of TTFT, TPOT and E2E latency, request by request.
    """

    step_s: float
    request_s: float
    held_out: Mapping[str, Residual]
    fitted: Mapping[str, Residual]


def replay_log(log: RequestLog, target: str, policy: str, step_s: float, request_s: float) -> RunRecord:
    """Run the requests of a log in the simulator, under its limits.

    Args:
        log: of the real run.
        target: of the simulator, as in ``sim:TARGET``.
        policy: that schedules as the real engine did.
        step_s, request_s: the host's time, seconds a step and a request of it.

    Raises:
        ConfigError: the machine or the policy cannot be made.
    """
    values = {
        **log.limits,
        "policy": policy,
        "backend": f"sim:{target}",
        "backend_options": {"host_step_s": step_s, "host_request_s": request_s},
    }
    return run_arm(EngineConfig.parse(values), log.workload, declared="exact", installed=load_plugins())


def fit_host(log: RequestLog, target: str, policy: str, start: tuple[float, float]) -> HostFit:
    """The host's time with which a replay gives the times per token of a log.

    A replay says which steps lie between an answer's first token and its last, so how much longer they would have taken
    with another host; with the host that is best by this, replay again, until that changes nothing. Every fifth request
    is kept from it. Errors beyond 20% weigh as Huber's loss has them: a request that was evicted in one run and not in
    the other says nothing here.

    Args:
        log: of the real run.
        target: of the simulator, with the constants of its kernels.
        policy: that schedules as the real engine did.
        start: seconds a step and a request of it, where the fit starts.

    Raises:
        ConfigError: too few answers are long enough, or the machine cannot be made.
    """
    chosen = [i for i, r in enumerate(log.requests) if r.num_output_tokens >= _MIN_TOKENS and r.tpot_s]
    train = [i for place, i in enumerate(chosen) if place % 5 != 4]
    if len(train) < 8:
        raise ConfigError(
            f"{log.source!r} has {len(chosen)} answers of {_MIN_TOKENS} tokens or more; a fit needs 10 of them"
        )
    real = np.array([log.requests[i].tpot_s for i in train], dtype=np.float64)
    at: Floats = np.array(start, dtype=np.float64)
    best: tuple[float, Floats, RunRecord | None] = (math.inf, at, None)
    for _ in range(_ROUNDS):
        run = replay_log(log, target, policy, float(at[0]), float(at[1]))
        error = np.array([_tpot_s(run.requests[i]) for i in train]) / real - 1
        loss = huber(error)
        if loss < best[0]:
            best = (loss, at, run)
        slopes = _slopes(run, [run.requests[i] for i in train]) / real[:, None]
        step = _solve(slopes, error, at)
        if np.abs(step).max() <= 1e-3 * at.max():
            break
        at = np.maximum(at + step, 0.0)
    _, at, found = best
    if found is None:
        raise ConfigError(f"{log.source!r}: no replay gives its times per token")
    held_out = [i for place, i in enumerate(chosen) if place % 5 == 4]
    return HostFit(float(at[0]), float(at[1]), _residuals(log, found, held_out), _residuals(log, found, train))


def _slopes(run: RunRecord, requests: Sequence[RequestRecord]) -> Floats:
    """By how much each time per token grows with the seconds a step and a request of it: float64[n, 2]."""
    ends = np.array([step.end_ns for step in run.steps], dtype=np.int64)
    firsts = np.searchsorted(ends, [request.token_times_ns[0] for request in run.requests])
    prompts = np.bincount(firsts, minlength=len(ends))  # whose last part ran in each step
    prompts = np.maximum(prompts, [step.num_prefill_tokens > 0 for step in run.steps])
    rows = prompts + np.array([step.num_decodes for step in run.steps], dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(rows)))  # rows of all steps before each
    slopes = []
    for request in requests:
        times = request.token_times_ns
        first, last = (int(np.searchsorted(ends, time)) for time in (times[0], times[-1]))
        more = len(times) - 1
        slopes.append(((last - first) / more, (before[last + 1] - before[first + 1]) / more))
    return np.array(slopes, dtype=np.float64)


def _solve(slopes: Floats, error: Floats, at: Floats) -> Floats:
    """The step that a linear model asks for, in which no time becomes negative."""
    weights = np.sqrt(huber_weights(error))
    step = np.zeros(2)
    free = [0, 1]
    while free:
        left = -(error + slopes @ step) * weights
        step[free] = np.linalg.lstsq(slopes[:, free] * weights[:, None], left, rcond=None)[0]
        below = [j for j in free if at[j] + step[j] < 0]
        if not below:
            break
        free.remove(below[0])
        step[:] = 0.0
        for j in (0, 1):
            if j not in free:
                step[j] = -at[j]
    return step


def _tpot_s(record: RequestRecord) -> float:
    times = record.token_times_ns
    if record.status != "finished" or len(times) < 2:
        raise ConfigError(
            f"request {record.request_id} of the log does not finish in the replay ({record.error or record.status}): "
            "check the model, the GPU and the limits in meta.json"
        )
    return (times[-1] - times[0]) / 1e9 / (len(times) - 1)


def _residuals(log: RequestLog, run: RunRecord, rows: Sequence[int]) -> dict[str, Residual]:
    real: list[LoggedRequest] = [log.requests[i] for i in rows]
    replayed = [run.requests[i] for i in rows]
    return {
        "TTFT": residual([(r.token_times_ns[0] - r.arrival_ns) / 1e9 for r in replayed], [r.ttft_s for r in real]),
        "TPOT": residual([_tpot_s(r) for r in replayed], [r.tpot_s or 0.0 for r in real]),
        "E2E": residual([(r.token_times_ns[-1] - r.arrival_ns) / 1e9 for r in replayed], [r.e2e_s for r in real]),
    }
