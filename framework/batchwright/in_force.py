"""The policy in force over a scheduler, and who builds a step where it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from batchwright.active_policy import ActivePolicy
from batchwright.batch_builder import BatchBuilder
from batchwright.decisions import Decisions
from batchwright.errors import ConfigError, PluginError, PolicyError
from batchwright.feasibility import Feasibility
from batchwright.rules import Rules
from batchwright.state import State
from batchwright.step import Step


class PolicyInForce:
    """Puts policies in force over one scheduler's state, and sees to their faults.

    Attributes:
        rules: what is asked of the policy, and of the plugins beside it.
        on_error: ``raise`` a policy's fault, or ``fallback``: another policy builds that step.
        fallback: that other policy; None: the default one, without a history.
        num_faults: those that were not raised.
    """

    rules: Rules

    def __init__(
        self,
        state: State,
        feasible: Feasibility,
        rebound: Callable[[], None],
        *,
        on_error: Literal["raise", "fallback"],
        fallback: ActivePolicy | None,
    ) -> None:
        """Takes what the scheduler has; nothing is in force yet.

        Args:
            state: of the scheduler.
            feasible: says whether a request could ever fit under the policy.
            rebound: called when the policy, or who is beside it, has changed.
            on_error: ``raise`` or ``fallback``.
            fallback: who builds a step instead.

        Raises:
            ConfigError: ``on_error`` is something else.
        """
        if on_error not in ("raise", "fallback"):
            raise ConfigError(f"on_policy_error must be 'raise' or 'fallback', not {on_error!r}")
        self._state = state
        self._feasible = feasible
        self._rebound = rebound
        self.on_error = on_error
        self.fallback = fallback
        self.num_faults = 0

    # Which it is --------------------------------------------------------------------------------------------

    def take(self, now: int, num_steps: int) -> None:
        """The policy that the hooks have is in force from now on, and is told so.

        Args:
            now: nanoseconds of the engine's clock.
            num_steps: the steps so far.

        Raises:
            PluginError: it needs an estimate of step times, and there is none.
        """
        state, active = self._state, self._state.hooks.policy
        self._check_predict(active)
        self._feasible.chunks = active.chunks
        self.bind()
        state.tell(state.hooks.policy_attached, Step(state, now, num_steps))

    def swap(self, active: ActivePolicy, now: int, num_steps: int) -> None:
        """Put another policy in force; arguments and errors as of ``take``.

        Raises:
            ConfigError: a request that is here could never fit under it; the old one stays.
        """
        self._feasible.check_policy(active, self._state.requests.values())
        self._check_predict(active)
        self._state.hooks.swap_policy(active)
        self.take(now, num_steps)

    def bind(self) -> None:
        """Whoever is asked has changed."""
        state = self._state
        self.rules = Rules(state.hooks)
        state.repeats = state.hooks.policy.stationary and state.hooks.policy_alone
        state.still = state.failed = False
        self._rebound()

    def _check_predict(self, active: ActivePolicy) -> None:
        if active.uses_predict and self._state.predict_s is None:
            raise PluginError(
                f"policy {active.name!r} needs step times in advance (uses_predict), and this backend has no cost "
                "estimate: use a sim backend, or another policy"
            )

    # Its faults ---------------------------------------------------------------------------------------------

    def fault(self, error: PolicyError) -> None:
        """Raise it, or, with ``fallback``, count it."""
        if self.on_error == "raise":
            raise error
        self.num_faults += 1
        self._state.events.append(
            {"kind": "policy_fault", "plugin": error.plugin, "hook": error.hook, "error": str(error)}
        )

    def stop(self, step: Step, why: str) -> None:
        """It gets nobody on: an error of the next step, or with ``fallback`` one that another policy builds."""
        message = f"in the last steps, {why}"
        self._state.hooks.violation = self.rules.error(step, "preemption", "progress", message)

    def raise_violation(self) -> None:
        """An observer tried to write (with ``fallback`` an observer's fault as any), or nobody gets on."""
        hooks = self._state.hooks
        violation = hooks.violation
        if violation is None or (self.on_error != "raise" and violation.rule == "progress"):
            return
        hooks.violation = None
        if self.on_error == "raise":
            raise violation

    def build(self, step: Step, builder: BatchBuilder) -> None:
        """Build a step's batch; where the policy fails, and that is not raised, the fallback builds it.

        Raises:
            PolicyError: it broke a rule, and ``on_error`` is ``raise``, or the fallback did; the batch was undone.
        """
        state = self._state
        try:
            if state.hooks.violation is not None:
                violation, state.hooks.violation = state.hooks.violation, None
                raise violation
            builder.build(step, self.rules)
            state.failed = False
        except BaseException as error:
            state.still = False
            builder.undo(step)
            if not isinstance(error, PolicyError):
                raise
            state.failed = True
            self.fault(error)
            state.still = step._by_policy = False
            try:
                builder.build(step, self._fallback_rules(step), fallback=True)
            except BaseException:
                builder.undo(step)
                raise

    def _fallback_rules(self, step: Step) -> Rules:
        neutral = self._state.hooks.neutral
        fallback = self.fallback if self.fallback is not None else ActivePolicy.of(neutral.fresh(), "fallback")
        decisions = Decisions(fallback, neutral)
        self._state.tell(decisions.policy_attached, step)  # it saw nobody come, and this step not begin
        self._state.tell(decisions.step_started, step)
        return Rules(decisions)
