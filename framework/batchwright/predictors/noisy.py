"""The true length times a random factor, so that prediction error is a parameter of an experiment."""

from __future__ import annotations

import math
import random
from typing import Annotated, ClassVar

from pydantic import Field
from xxhash import xxh3_64_intdigest

from batchwright.params import Params
from batchwright.predictor import PredictorParams
from batchwright.predictors.oracle import Oracle
from batchwright.request import Request


class NoisyParams(PredictorParams):
    """Parameters of :class:`Noisy`."""

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.5,
        description="Size of the error: standard deviation of the logarithm of prediction / true length. 0: none; 0.5: "
        "two of three predictions are within a factor of 1.65; 2: within one of 7.4.",
    )
    seed: int = Field(default=0, ge=0, lt=2**64, description="Of the errors.")


class Noisy(Oracle):
    """The true length with a log-normal error: times exp(tau · z), z standard normal.

    Source: the error model of Dell'Amico, Carra and Michiardi, "PSBS: Practical Size-Based Scheduling", IEEE
    Transactions on Computers, 2016, as in its simulator (bigfootproject/schedsim, ``simulator.py``, ``lognorm_error``).
    Errors are multiplicative, over- and underestimates of a factor are equally likely, and the median is right. How
    such predictions order lengths that are log-normal themselves, with standard deviation s of the logarithm: Kendall's
    rank correlation, by which Fu et al. ("Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024) measure
    predictors, is 2/π · arcsin(s / √(s² + tau²)).

    z depends on the seed and the request alone: every arm meets the same errors, and a larger tau makes each larger.
    """

    Params: ClassVar[type[Params]] = NoisyParams
    params: NoisyParams

    def predict(self, request: Request) -> int | None:
        """The true length, wrong; at least one token."""
        truth = super().predict(request)
        if truth is None:
            return None
        z = random.Random(xxh3_64_intdigest(request.request_id.encode(), self.params.seed)).gauss(0.0, 1.0)
        return max(1, round(truth * math.exp(min(self.params.tau * z, 40.0))))
