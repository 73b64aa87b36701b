"""The true length, for what perfect predictions would bring."""

from __future__ import annotations

from batchwright.predictor import Predictor
from batchwright.request import Request


class Oracle(Predictor):
    """Says how long the answer will really be: the upper bound of what any predictor can bring.

    Only where a workload is replayed: nobody else knows. ``max_tokens`` cuts the true length, so it cuts this one.
    """

    sees_true_length = True

    def predict(self, request: Request) -> int | None:
        """What the lab hands over."""
        return None if self.true_length is None else min(self.true_length, request.max_tokens)
