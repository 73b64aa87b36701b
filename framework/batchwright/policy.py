"""The base class of scheduling policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.limits import Limits
from batchwright.need import Need
from batchwright.params import Parametrized
from batchwright.params import Params as Params


class Policy(Parametrized):
    """A scheduling policy: any of the decision and observer hooks, as methods marked with ``@hookimpl``.

    One object serves one engine, so it may keep state in ``self``; build that state in ``policy_attached`` and the
    observers, since a policy can be attached to a live engine. What a policy does not decide falls to the core:
    chunking min(pending, budget), reservation the present length, preemption and admission as in ``prefill_first``.

    Attributes:
        Params: a pydantic model of the parameters; subclass :class:`batchwright.Params`.
        chunks: False for a policy that never cuts a prompt. Requests whose recompute could exceed the budget are
            then refused.
        budget_counts_decodes: whether a decode takes a token of the budget.
        uses_predict: whether it calls ``step.predict_s``: refused on a backend without a cost estimate.
        stationary: with no arrival, end, eviction or abort, what the last step decided is decided again; and while
            nobody waits and no prompt is under way, all residents decode in every step, whoever came or ended before.
            Such a policy is not asked then. Not inherited by a class that has decision hooks of its own: it says so
            again.
        steady: while no prompt is under way and nobody can come in, all residents decode in every step, whoever came or
            ended before. Nobody can come in where nobody waits and, unless it is ``preemptive``, where all seats are
            taken. Whoever schedules need not ask it then, but tells it of the step. Not inherited, as ``stationary``.
        scans_waiting: whether a step may look at all who wait; False: at few of them, however many there are.
        preemptive: whether its preemption may evict a resident to let a newcomer in.
        reserves_all: whether its reservation takes the blocks of all that a request can ever need.
        decodes_every_step: whether its admission offers every decode room in every step, prompts or not.
        fair_to_clients: whether it shares service among clients by what each has had. It knows of one engine only: of
            several replicas or data-parallel ranks each does that by itself.
        needs: what it relies on in other slots of a composite, each a :class:`batchwright.Need`.
        params: this object's parameters.
    """

    chunks: bool = True
    budget_counts_decodes: bool = True
    uses_predict: bool = False
    stationary: bool = False
    steady: bool = False
    scans_waiting: bool = True
    preemptive: bool = False
    reserves_all: bool = False
    decodes_every_step: bool = True
    fair_to_clients: bool = False
    needs: tuple[Need, ...] = ()

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """Settings this policy wants where the config leaves them unset, by their dotted config names.

        Args:
            limits: as configured so far: a default may depend on them.
        """
        return {}
