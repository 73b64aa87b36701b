"""Replaying recorded decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchwright.active_policy import ActivePolicy
from batchwright.errors import BatchwrightError, ConfigError
from batchwright.hookspecs import DECISIONS
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Policy
from batchwright.replay.case import Case
from batchwright.replay.driver import Drivable, drive, predictor
from batchwright.replay.reading import read_cases
from batchwright.replay.report import Difference, ReplayReport
from batchwright.resolve import parse_arm, resolve_policy
from batchwright.scheduler import Scheduler

Spec = str | Mapping[str, Any] | Policy | None
SchedulerFactory = Callable[..., Drivable]
"""Called as ``factory(policy, **settings)`` with the keyword arguments of :class:`~batchwright.Scheduler`."""


def replay(
    path: str | Path,
    policy: Spec = None,
    *,
    scheduler_factory: SchedulerFactory | None = None,
    plugins: Plugins | None = None,
) -> ReplayReport:
    """Replay recorded decisions, and compare every field of every step.

    Args:
        path: a file of cases, in any format that is known.
        policy: ``NAME``, ``NAME:param=value,…``, a mapping as in a config, or an object (each case gets a fresh one
            with the same parameters). Where a file gives parameters without naming a policy (vLLM's cases), those that
            this does not say are taken from the file. None: the recorded policy, where the format records it.
        scheduler_factory: what to hold to the recording; the fast scheduler by default.
        plugins: where policies are looked up; what is installed by default.

    Raises:
        CasesError: the file cannot be read, or a line of it is wrong.
        ConfigError, PluginError: no such policy, or it cannot be made.
    """
    plugins = plugins if plugins is not None else load_plugins()
    make: SchedulerFactory = scheduler_factory if scheduler_factory is not None else Scheduler
    num_cases = num_steps = 0
    differences: list[Difference] = []
    for case in read_cases(path):
        compared, difference = replay_case(case, policy, make, plugins, str(path))
        num_cases += 1
        num_steps += compared
        if difference is not None:
            differences.append(difference)
    return ReplayReport(str(path), num_cases, num_steps, differences)


def replay_case(
    case: Case, policy: Spec, make: SchedulerFactory, plugins: Plugins, file: str
) -> tuple[int, Difference | None]:
    """Replay one case up to its first difference; returns the steps compared, and the difference."""

    def policy_of(spec: Any) -> Policy | ActivePolicy:
        return _single(resolve_policy(spec, plugins))

    first = case_policy(case, policy, plugins, file)
    settings = case.settings.arguments()
    predict_s = predictor(case)
    if predict_s is not None:
        settings["predict_s"] = predict_s
    scheduler = make(first, **settings)
    step = 0
    try:
        for outcome in drive(case, scheduler, policy_of):
            expected, actual = case.steps[step], case.describe(outcome)
            step += 1
            if expected != actual:
                return step, Difference(file, case.line, case.name, step - 1, expected, actual)
    except BatchwrightError as error:
        what = f"{type(error).__name__}: {error}"
        return step, Difference(file, case.line, case.name, step, case.steps[step], {}, error=what)
    return step, None


def case_policy(case: Case, spec: Spec, plugins: Plugins, file: str) -> Policy | ActivePolicy:
    """The policy of a case, with what the case says of its parameters.

    Raises:
        ConfigError, PluginError: no such policy, or neither the caller nor the case names one.
    """
    if spec is None:
        if case.policy is None:
            raise ConfigError(
                f"{file}: this format does not record the policy; give one with --policy, such as prefill_first"
            )
        spec = case.policy
    if isinstance(spec, Policy):
        return type(spec)(spec.params)
    values = parse_arm(spec) if isinstance(spec, str) else dict(spec)
    policy = _single(resolve_policy(values, plugins))
    if isinstance(policy, Policy):
        known = type(policy).Params.model_fields
        told = {name: value for name, value in case.params.items() if name in known and name not in values}
        if told:
            return type(policy).from_values({**policy.params.model_dump(), **told})
    return policy


def _single(active: ActivePolicy) -> Policy | ActivePolicy:
    """The policy itself where one decides everything, which the reference can run too."""
    is_one = len(active.parts) == 1 and len(active.slots) == len(DECISIONS)
    return next(iter(active.slots.values())) if is_one else active
