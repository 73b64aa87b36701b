"""Least squares for constants of the cost model: no training, a few positive numbers a term."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from batchwright.calibration import Residual

Floats = NDArray[np.float64]

_OUTLIER = 0.2  # an error beyond 20% pulls with its size, not its square: tables have rows that were disturbed
_STEP = 1e-5  # of the logarithm of a constant, for derivatives
_ROUNDS = 200


def least_squares(
    predict: Callable[[Mapping[str, float]], Floats],
    start: Mapping[str, float],
    measured_s: Floats,
    *,
    weights: Floats | None = None,
    prior: float = 0.0,
) -> dict[str, float]:
    """Constants that predict measured times best, by relative error.

    Levenberg and Marquardt's method on the logarithms of constants and times, so that constants stay positive and a
    row of 10 µs counts as much as one of 10 ms; errors beyond 20% weigh as Huber's loss has them.

    Args:
        predict: seconds of every row, float64[n], from the constants.
        start: first guess of each constant, above 0.
        measured_s: float64[n], seconds.
        weights: float64[n], how much each row counts; None: all the same.
        prior: what it costs that a constant differs from its guess by a factor e, as an error of one row: keeps
            constants near it of which the rows say nothing. 0: nothing.
    """
    names = list(start)
    guess = np.log(np.array([start[name] for name in names], dtype=np.float64))
    target = np.log(measured_s)
    counts = np.concatenate([np.ones(len(target)) if weights is None else weights, np.ones(len(names))])

    def errors(logs: Floats) -> Floats:
        times = predict(dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.concatenate([np.log(times) - target, prior * (logs - guess)])

    at = guess
    error = errors(at)
    loss, damping = huber(error, counts), 1e-2
    for _ in range(_ROUNDS):
        slopes = np.stack([(errors(at + _STEP * unit) - error) / _STEP for unit in np.eye(len(names))], axis=1)
        pull = (slopes * (counts * huber_weights(error))[:, None]).T
        curvature, gradient = pull @ slopes, pull @ error
        scale = np.diag(np.diag(curvature) + 1e-12)
        gain = 0.0
        while damping < 1e12:
            step: Floats = np.linalg.solve(curvature + damping * scale, -gradient).astype(np.float64).clip(-1.0, 1.0)
            tried = errors(at + step)
            gain = loss - huber(tried, counts)
            if gain > 0:  # false for a NaN as well
                at, error, loss, damping = at + step, tried, loss - gain, max(damping / 5, 1e-9)
                break
            damping *= 4
        if not gain > 1e-6 * loss:
            break
    return dict(zip(names, np.exp(at).tolist(), strict=True))


def huber_weights(error: Floats) -> Floats:
    """How much each error weighs in least squares that follow Huber's loss."""
    return np.asarray(np.minimum(1.0, _OUTLIER / np.maximum(np.abs(error), 1e-12)), dtype=np.float64)


def huber(error: Floats, counts: Floats | float = 1.0) -> float:
    """Huber's loss, in which each error counts so often: the square of an error up to 20%, its size beyond."""
    size = np.abs(error)
    return float((counts * np.where(size < _OUTLIER, error**2 / 2, _OUTLIER * (size - _OUTLIER / 2))).sum())


def residual(predicted_s: Sequence[float] | Floats, measured_s: Sequence[float] | Floats) -> Residual:
    """Errors of ``predicted_s`` against ``measured_s``, both seconds, float64[n]."""
    error = np.asarray(predicted_s, dtype=np.float64) / np.asarray(measured_s, dtype=np.float64) - 1
    size = np.abs(error)
    return Residual(len(error), float(size.mean()), float(np.percentile(size, 90)), float(error.mean()))
