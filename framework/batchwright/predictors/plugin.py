"""Entry point of the predictors that come with Batchwright."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.predictor import Predictor
from batchwright.predictors.history import History
from batchwright.predictors.noisy import Noisy
from batchwright.predictors.oracle import Oracle


@hookimpl
def register_predictors() -> dict[str, type[Predictor]]:
    """A perfect one, one with an error of a chosen size, and one that learns from what finished."""
    return {"history": History, "noisy": Noisy, "oracle": Oracle}
