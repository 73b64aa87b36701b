"""Predictors: who says, when a request arrives, how long its answer will be."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from batchwright.backend import Clock, VirtualClock
from batchwright.errors import InvalidRequestError
from batchwright.hookspecs import hookimpl
from batchwright.params import Parametrized, Params
from batchwright.request import Request

NO_PREDICTIONS = "none"
"""What a report says of a run in which nobody predicts."""


class PredictorParams(Params):
    """Parameters of every predictor; subclass it for more."""

    cost_s: Annotated[float, Field(ge=0)] | Literal["measured"] = Field(
        default=0.0,
        description="Seconds that one prediction takes, charged to a simulator's clock when the request arrives; "
        "measured: what the call took on this machine, so that runs no longer repeat exactly. A real clock runs by "
        "itself.",
    )


class Predictor(Parametrized):
    """Predicts how long answers will be: say ``predict(request)``, and observers if it learns from what happens.

    The engine asks it once for each request that brings no ``predicted_output_tokens``, when the request arrives. It
    waits for the answer, so the time that a prediction takes delays everybody: it is charged to a virtual clock.

    Attributes:
        Params: a pydantic model of the parameters; subclass :class:`PredictorParams`.
        sees_true_length: whether it is told how long a request really runs (``true_length``), which no policy is. Such
            a predictor is an oracle: it works only where a workload is replayed, and the header of a report says so.
        true_length: output tokens of the request that is just asked about, where it may see them; else None.
    """

    Params: ClassVar[type[Params]] = PredictorParams
    _kind: ClassVar[str] = "predictor"
    sees_true_length: ClassVar[bool] = False
    true_length: int | None = None
    _spent_ns: int = 0

    def predict(self, request: Request) -> int | None:
        """Output tokens that the request will have; None: it cannot say."""
        raise NotImplementedError(f"{type(self).__name__} must say predict(request): a number of tokens, or None")

    @hookimpl
    def predict_output(self, request: Request) -> int | None:
        """``predict``, with its time kept."""
        start_ns = time.perf_counter_ns()
        answer = self.predict(request)
        cost_s = getattr(self.params, "cost_s", 0.0)
        took_ns = time.perf_counter_ns() - start_ns
        self._spent_ns += took_ns if cost_s == "measured" else round(cost_s * 1e9)
        return answer

    def take_spent_ns(self) -> int:
        """Nanoseconds that predictions took since this was last asked."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def describe(self, name: str) -> Mapping[str, Any]:
        """Name and parameters, as plain data."""
        return {"use": name, **self.params.model_dump()}


def is_predictor_class(value: object) -> bool:
    """Whether it is a class of predictors (and not an object of one)."""
    return isinstance(value, type) and issubclass(value, Predictor)


@contextmanager
def asked(predictor: Predictor, request: Request, true_length: int | None, clock: Clock) -> Iterator[None]:
    """While a request is added: hand over its true length where that may be seen; charge what the answer took.

    Raises:
        InvalidRequestError: the predictor needs the true length, and nobody knows it.
    """
    if predictor.sees_true_length and request.predicted_output_tokens is None:
        if true_length is None:
            raise InvalidRequestError(
                f"request {request.request_id!r}: predictor {type(predictor).__name__} is told how long a request "
                "really runs, and nobody knows that here: it works only where a workload is replayed; use another "
                "predictor (history), or bring predicted_output_tokens"
            )
        predictor.true_length = true_length
    try:
        yield
    finally:
        predictor.true_length = None
        spent_ns = predictor.take_spent_ns()
        if spent_ns and isinstance(clock, VirtualClock):
            clock.advance_ns(spent_ns)


def describe_predictions(named: tuple[str, Predictor] | None, num_given: int, num_rows: int) -> str:
    """Where predicted lengths come from, for the header of a report.

    Args:
        named: the predictor and its name; None: there is none.
        num_given: rows of the workload that bring a prediction.
        num_rows: rows in all.
    """
    given = f"by {num_given} of {num_rows} rows" if num_given < num_rows else "by the workload's rows"
    if named is None:
        return given if num_given else NO_PREDICTIONS
    words, predictor = named
    chosen = predictor.params.model_dump(exclude_defaults=True)
    if chosen:
        words += f" ({', '.join(f'{name}={value}' for name, value in chosen.items())})"
    if predictor.sees_true_length:
        words += ", an oracle: told the true lengths"
    return f"{given}, the others {words}" if num_given else words
