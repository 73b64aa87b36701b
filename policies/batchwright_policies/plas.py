"""The program with the least attained service first: Autellix's policy."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.ranked import Queue
from batchwright.request import Request
from batchwright.step import Step
from batchwright_policies.groups import Groups
from batchwright_policies.levels import Levels, LevelsParams


class PlasParams(LevelsParams):
    """Parameters of :class:`Plas`."""

    remembered: int = Field(
        default=10_000,
        ge=0,
        description="Programs without an unfinished call whose service is remembered; the longest idle is forgotten.",
    )


class Plas(Levels):
    """Calls of the program that has had the least service first, in levels (Autellix's policy for one thread).

    Source: Luo et al., "Autellix: An Efficient Serving Engine for LLM Agents as General Programs", 2025: program-level
    attained service. A call joins the level of the service that the finished calls of its program (``program_id``) have
    had, and goes down as it runs. Calls without a program are programs of their own. Whoever starves is put on top.

    It lets short programs pass long ones, where a policy of single calls sees only short calls. A step costs
    O(log programs) for each newcomer it looks at, and O(residents), or O(residents · log residents) when one passes a
    resident.
    """

    Params = PlasParams
    params: PlasParams  # pyright: ignore[reportIncompatibleVariableOverride]
    card: ClassVar[Card] = Card(
        source='Luo et al., "Autellix: An Efficient Serving Engine for LLM Agents as General Programs", 2025, '
        "arXiv:2502.13965, sections 4.2.1 (PLAS) and 4.2.2, Algorithm 1",
        rules={
            "a call's priority is the service of its program's finished calls (4.2.1)": "rank",
            "services are put in a finite number of levels (4.2.2)": "level_after",
            "a call that exceeds its level's quantum is demoted (4.2.2)": "level_after",
            "first come, first served within a level (4.2.2)": "make_queue",
            "a call that waits too long is promoted to the first level (4.2.2)": "step_started",
            "a process table keeps the service of each program (4.2.1)": "request_finished",
        },
        deviations=(
            "who loses its blocks is recomputed; Autellix swaps K and V to host memory",
            "service is counted in iterations, and prompts at a fixed exchange, instead of measured in time",
            "a call's level follows from what its program has had, this call included; there it is looked up when the "
            "call arrives, which then gets the whole quantum of that level",
            "levels grow by a constant ratio; there their bounds and quanta are free",
            "a call is promoted after starve_s; there when its program has waited beta times as long as it was served",
            "who runs is decided in every step; there every N steps",
            "nobody says when a program ends, so only a number of idle programs is remembered",
            "services of calls that run at once add up; there the longest path of a program counts (ATLAS)",
            "no balancing between engines (4.3)",
        ),
        evidence={
            "property tested": "short programs end before long ones whose single calls are shorter",
            "from the paper only": "its rules: compared with its text, no decisions of it were recorded; ATLAS and the "
            "load balancer: left out",
        },
    )

    def __init__(self, params: PlasParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._served: dict[Hashable, float] = {}  # by the finished calls of a program
        self._open: Counter[Hashable] = Counter()  # unfinished calls of a program
        self._idle: OrderedDict[Hashable, None] = OrderedDict()  # programs without any, the longest idle first

    def make_queue(self) -> Queue:
        """Calls by program."""
        return Groups(_program, lambda _, oldest: self.rank(oldest))

    def rank(self, request: Request) -> int:
        """The level of its program."""
        return self.level_after(self._progress(request))

    def rank_holds(self, request: Request) -> float:
        """As long as it stays in its level; when another call of its program ends, all are looked at."""
        is_new = not request.num_output_tokens and self.since_promotion(request) is None
        return self.tokens_left(self._progress(request), first=self.prompt_service(request) if is_new else 1.0)

    def _progress(self, request: Request) -> float:
        """Iterations since it was promoted, or that its program has had with it."""
        since = self.since_promotion(request)
        return self._served.get(request.program_id, 0.0) + self.service(request) if since is None else since

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Begin with a clean slate."""
        self._served.clear()
        self._idle.clear()
        self._open = Counter(r.program_id for r in (*step.waiting, *step.running) if r.program_id is not None)
        super().policy_attached(step)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """A call of its program."""
        if request.program_id is not None:
            self._open[request.program_id] += 1
            self._idle.pop(request.program_id, None)
        super().request_arrived(request)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """Its service is its program's from now on."""
        program = request.program_id
        if program is not None:
            self._served[program] = self._served.get(program, 0.0) + self.service(request)
            self._open[program] -= 1
            if self._open[program] > 0:
                self.look_again()  # its other calls may be in a higher level now
            else:
                del self._open[program]
                self._idle[program] = None
                if len(self._idle) > self.params.remembered:
                    forgotten, _ = self._idle.popitem(last=False)
                    del self._served[forgotten]
        super().request_finished(request)


def _program(request: Request) -> Hashable:
    return request.program_id if request.program_id is not None else request
