"""Every hook, as a pluggy specification of project ``batchwright``.

Decision hooks: the first plugin that answers something else than ``None`` decides; 0 and an empty iterable are
answers. Observer hooks: all run, none can change what was decided; a fault in one is counted and undoes nothing.
Registration hooks: called once, when plugins are loaded. An implementation takes any subset of the arguments, by
name. Mark it with :data:`hookimpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

import pluggy

from batchwright.errors import InvalidRequestError

if TYPE_CHECKING:
    from batchwright.backend import BackendEntry, StepResult
    from batchwright.fleet.view import FleetView
    from batchwright.leap import Leap
    from batchwright.policy import Policy
    from batchwright.predictor import Predictor
    from batchwright.request import Request
    from batchwright.router import Router
    from batchwright.step import Step

PROJECT = "batchwright"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Hold(Enum):
    """The type of :data:`HOLD`."""

    HOLD = "HOLD"

    def __repr__(self) -> str:
        return "HOLD"


HOLD: Final = Hold.HOLD
"""``preemption`` answers it to evict nobody: the request that asked stays out of this step."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``arrival`` answers it to turn a request away.

    Attributes:
        reason: why, in words for the caller.
    """

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason:
            raise InvalidRequestError(f"a Refusal gives its reason in words, not {self.reason!r}")


# Decisions ---------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def admission(step: Step) -> Iterable[Request | Sequence[Request]] | None:
    """Who is offered room in this step's batch, and in what order.

    Consumed lazily: after a ``yield`` of one request its ``num_scheduled`` says what became of it (0: not in this
    step). A sequence is the same as yielding each of it without looking in between, and faster; ``step.running``
    as a whole is the fastest. A generator function always answers; to decline, write a plain function that returns
    None or a generator.

    Called once a step. Who implements it: policies; wrappers may filter or reorder the iterable. Since 0.1.
    """


@hookspec(firstresult=True)
def chunking(step: Step, request: Request) -> int | None:
    """How many of the request's pending tokens run in this step: 0 (not now) to min(pending, ``step.budget``).

    Asked for each offer with more than one token pending while budget is left. Since 0.1.
    """


@hookspec(firstresult=True)
def reservation(step: Step, request: Request) -> int | None:
    """For how many tokens blocks are taken when the request is admitted.

    Its present length (``request.num_tokens``) by default; 0 takes blocks for the first chunk only; more than it can
    ever need (prompt + max_tokens - 1) is cut to that. Asked at each admission, so again after a preemption. Since
    0.1.
    """


@hookspec(firstresult=True)
def preemption(step: Step, request: Request) -> Request | Literal[Hold.HOLD] | None:
    """Whom to evict so that ``request`` can run: blocks or seats are lacking (``step.lacking``).

    Any resident, ``request`` itself if it is resident, or :data:`HOLD` (evict nobody; it stays out of this step). A
    victim in this step's batch is taken out whole, and its tokens go back to the budget. Asked again until there is
    room. Since 0.1.
    """


@hookspec(firstresult=True)
def arrival(request: Request) -> bool | Refusal | None:
    """Whether to take a request that could fit: True, or :class:`Refusal` with the reason (load shedding).

    Asked once, when the request is added. Since 0.1.
    """


@hookspec(firstresult=True)
def predict_output(request: Request) -> int | None:
    """How many output tokens the request will have, as a guess: at least 0, or None where there is none.

    Asked once, when a request is added that brings no ``predicted_output_tokens``, before ``arrival``; the answer
    stands there from then on. Nobody is told the true length (but see :class:`batchwright.Predictor`). Since 0.1.
    """


# Fleets ------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def routing(fleet: FleetView, request: Request) -> int | None:
    """Which replica of a fleet takes the request: its index, 0 to ``len(fleet) - 1``.

    Asked once for each request, when it arrives. Who implements it: routers, and plugins that a config lists. Since
    0.1.
    """


# Observers ---------------------------------------------------------------------------------------------------


@hookspec
def step_started(step: Step) -> None:
    """A step is about to be built; queues are as ``admission`` will see them. Since 0.1."""


@hookspec
def step_finished(step: Step, result: StepResult) -> None:
    """A step was executed and its tokens are appended; ``num_scheduled`` can still be read. Since 0.1."""


@hookspec
def steps_leapt(leap: Leap) -> None:
    """Several steps were taken at once; they brought what single steps would have brought (see ``Leap``).

    An observer that has ``step_started`` or ``step_finished`` and not this hook wants every step, and nothing is leapt
    while it is registered. One that has it is told of a step either here or there. Since 0.1.
    """


@hookspec
def request_arrived(request: Request) -> None:
    """A request was taken; it waits. Since 0.1."""


@hookspec
def request_admitted(step: Step, request: Request) -> None:
    """A request became resident; told when the step's batch is complete. Since 0.1."""


@hookspec
def request_preempted(step: Step, victim: Request, request: Request | None) -> None:
    """``victim`` was evicted so that ``request`` can run; None: the backend failed and it is retried. Since 0.1."""


@hookspec
def request_finished(request: Request, reason: str) -> None:
    """A request ended: ``stop``, ``length``, ``trace``, ``abort`` or ``error``; waiting ones too. Since 0.1."""


@hookspec
def policy_attached(step: Step) -> None:
    """This policy was attached, to a fresh engine or a live one: build state from the queues of ``step``. Since 0.1."""


# Registration ------------------------------------------------------------------------------------------------


@hookspec
def register_policies() -> Mapping[str, type[Policy]]:
    """Policies that this distribution brings, by name. Nothing of them is active until a config names it. Since 0.1."""
    return {}


@hookspec
def register_backends() -> Mapping[str, BackendEntry]:
    """Backends that this distribution brings, by name. Import what is heavy in ``BackendEntry.create``. Since 0.1."""
    return {}


@hookspec
def register_predictors() -> Mapping[str, type[Predictor]]:
    """Predictors of output lengths, by name; one predicts in an engine whose config names it. Since 0.1."""
    return {}


@hookspec
def register_routers() -> Mapping[str, type[Router]]:
    """Routers of fleets, by name; one routes where a config names it. Since 0.1."""
    return {}


@hookspec
def register_workloads() -> Mapping[str, Any]:
    """Workload readers, by name: see ``batchwright.lab``. Since 0.1."""
    return {}


@hookspec
def register_metrics() -> Mapping[str, Any]:
    """Metrics by name: ``batchwright.lab.RunMetric`` or ``RequestMetric``, or a function of a run record. Since 0.1."""
    return {}


DECISIONS = ("admission", "chunking", "reservation", "preemption", "arrival", "predict_output")
IN_STEP = ("admission", "chunking", "reservation", "preemption")
"""Decisions that are asked while a step is built; the others, when a request is added."""
ROUTING = ("routing",)
"""Decisions about a fleet: they belong to its router, and to no policy."""
OBSERVERS = (
    "step_started",
    "step_finished",
    "steps_leapt",
    "request_arrived",
    "request_admitted",
    "request_preempted",
    "request_finished",
    "policy_attached",
)
REGISTRATIONS = (
    "register_policies",
    "register_backends",
    "register_predictors",
    "register_routers",
    "register_workloads",
    "register_metrics",
)
HOOKS = DECISIONS + ROUTING + OBSERVERS + REGISTRATIONS
