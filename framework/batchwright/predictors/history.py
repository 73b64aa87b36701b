"""What earlier answers of the same client were like."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import ClassVar, Literal

from pydantic import Field

from batchwright.hookspecs import hookimpl
from batchwright.params import Params
from batchwright.predictor import Predictor, PredictorParams
from batchwright.request import Request

_ENDED_BY_ITSELF = ("stop", "length", "trace")


class HistoryParams(PredictorParams):
    """Parameters of :class:`History`."""

    by: Literal["client", "program", "session", "all"] = Field(
        default="client",
        description="Whose answers tell: those of the same client_id, program_id or session_id, or everybody's.",
    )
    statistic: Literal["median", "mean"] = Field(
        default="median", description="Of their lengths. The mean is drawn up by a few long answers."
    )
    window: int = Field(default=100, ge=1, description="Answers that are remembered of each, the last ones.")
    enough: int = Field(
        default=3, ge=1, description="Answers of one from which on they tell; before, everybody's do, from as many on."
    )
    remembered: int = Field(
        default=10_000, ge=1, description="Clients, programs or sessions that are remembered, the last ones."
    )


class History(Predictor):
    """The median length of the last answers of the same client: no model, and no peeking.

    Source: the distribution of finished output lengths from which Gong et al., "Past-Future Scheduler for LLM Serving
    under SLA Guarantees", ASPLOS 2025, estimate memory; here of each client, and a point instead of a distribution. A
    finished answer costs O(log window) comparisons; aborted and failed ones tell nothing.
    """

    Params: ClassVar[type[Params]] = HistoryParams
    params: HistoryParams

    def __init__(self, params: HistoryParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._all = _Lengths(self.params.window)
        self._groups: OrderedDict[Hashable, _Lengths] = OrderedDict()  # whose last answer is longest ago first

    def predict(self, request: Request) -> int | None:
        """From the answers of its group, else from everybody's, else nothing."""
        for lengths in (self._groups.get(self._group(request)), self._all):
            if lengths is not None and len(lengths) >= self.params.enough:
                return lengths.mean() if self.params.statistic == "mean" else lengths.median()
        return None

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        """Remember how long its answer was."""
        if reason not in _ENDED_BY_ITSELF:
            return
        self._all.add(request.num_output_tokens)
        group = self._group(request)
        if group is None:
            return
        if group not in self._groups:
            self._groups[group] = _Lengths(self.params.window)
            if len(self._groups) > self.params.remembered:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        self._groups[group].add(request.num_output_tokens)

    def _group(self, request: Request) -> Hashable:
        by = self.params.by
        return None if by == "all" else getattr(request, f"{by}_id")


class _Lengths:
    """The last lengths, also in order."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: deque[int] = deque()
        self._ordered: list[int] = []

    def __len__(self) -> int:
        return len(self._last)

    def add(self, length: int) -> None:
        self._last.append(length)
        insort(self._ordered, length)
        if len(self._last) > self._window:
            del self._ordered[bisect_left(self._ordered, self._last.popleft())]

    def mean(self) -> int:
        return max(1, round(sum(self._last) / len(self._last)))

    def median(self) -> int:
        return max(1, self._ordered[len(self._ordered) // 2])
