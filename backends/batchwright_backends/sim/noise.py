"""Chance in the time of simulated steps."""

from __future__ import annotations

import math
from statistics import NormalDist

from batchwright_backends.sim.tokens import mixed

_STREAM = 0x5851F42D4C957F2D
"""Keeps the draws of a seed apart from the tokens that are drawn with it."""


class StepNoise:
    """A factor for the time of each step, lognormal with mean 1.

    The factor is a function of the seed and the step's index, not of how many were asked for before: a step that is
    looked at twice, or never executed, changes none of the others.

    Args:
        sigma: standard deviation of the factor's logarithm; 0.05 is about 5%.
        seed: of the draws.
        stream: another number gives other draws with the same seed: one for each arm of a comparison.
    """

    def __init__(self, sigma: float, seed: int, stream: int = 0) -> None:
        self.sigma = sigma
        self._seed = mixed(mixed(seed, stream), _STREAM)
        self._quantile = NormalDist().inv_cdf
        self._shift = -sigma * sigma / 2

    def factor(self, step_index: int) -> float:
        """What the time of a step is multiplied with."""
        share = ((mixed(self._seed, step_index) >> 11) + 0.5) * 2.0**-53  # strictly between 0 and 1
        return math.exp(self.sigma * self._quantile(share) + self._shift)
