"""Decodes go first when they have waited too long, whatever the policy offers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from pydantic import Field

from batchwright import Params, Policy, Request, Step, hookimpl

Offers = Iterable[Request | Sequence[Request]]


class StallGuardParams(Params):
    """Parameters of :class:`StallGuard`."""

    max_stall_s: float = Field(default=0.1, gt=0, description="Seconds that decodes may be without a step of theirs.")


class StallGuard(Policy):
    """Prompts first, or whatever it wraps, but decodes go first once they have waited ``max_stall_s``.

    The stall is the generation stall of Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with
    Sarathi-Serve", OSDI 2024, section 3; there it is avoided in every step by chunked prefills, here it is bounded
    from outside, and the policy inside keeps its order and its chunks.

    ``admission`` is a wrapper: named as a policy it wraps the core's default; as one of ``Engine(plugins=[...])`` it
    wraps the engine's policy. Decodes are stalled since the last step that ran all of them ended (or since there are
    any). If they would run beyond the bound when they are left out once more (of this step, and so as far as to the end
    of the next, each as long as steps lately were), they are offered room before what is inside offers it. A step
    costs O(decodes) then, and O(1) on top of what it wraps otherwise.
    """

    name = "stall_guard"
    Params = StallGuardParams
    params: StallGuardParams
    budget_counts_decodes = False  # as in prefill_first, which it wraps when it is the policy
    scans_waiting = False

    def __init__(self, params: StallGuardParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self.num_interventions = 0
        self._ran_ns = 0  # when decodes last ran, or began to be there
        self._step_ns = 0.0  # what a step takes: the longest lately, whose memory halves with each step

    # What it knows -------------------------------------------------------------------------------------------

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Nobody has been kept waiting yet, as far as it knows."""
        self._ran_ns = step.now
        self._step_ns = 0.0

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """Note how long the step took, and whether decodes ran."""
        end = step.end if step.end is not None else step.now
        length = end - step.now
        self._step_ns = max(length, (self._step_ns + length) / 2)
        if step.num_decodes >= len(step.decodes) or not any(r.is_decode for r in step.running):
            self._ran_ns = end

    # What it does --------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Generator[None, Offers, Offers]:
        """The offers inside, behind the decodes if these have waited too long."""
        offers = yield
        return self._guarded(step, offers)

    def _is_late(self, step: Step) -> bool:
        return step.now + 2 * self._step_ns - self._ran_ns > self.params.max_stall_s * 1e9

    def _guarded(self, step: Step, offers: Offers) -> Offers:
        if not step.decodes or not self._is_late(step):
            yield from offers
            return
        self.num_interventions += 1
        yield step.decodes
        for offer in offers:  # less those that it offered itself
            if not isinstance(offer, Request):
                rest = [r for r in offer if not r.num_scheduled]
                if rest:
                    yield rest
            elif not offer.num_scheduled:
                yield offer
