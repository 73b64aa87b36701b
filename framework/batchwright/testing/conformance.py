"""The conformance kit: named checks of a policy on generated states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from batchwright.errors import ConfigError, did_you_mean
from batchwright.testing import behaviour_checks, params_check  # noqa: F401 - they register their checks
from batchwright.testing.checks import CHECKS, describe
from batchwright.testing.kit import Kit
from batchwright.testing.report import ConformanceError, Failed, Outcome, Report, Skipped, Unreached, again
from batchwright.testing.subject import PolicyLike, Subject

__all__ = ["CHECKS", "BoundCheck", "bind_checks", "check_policy", "describe", "parametrize_checks", "run_checks"]


class BoundCheck:
    """One check of one policy; calling it runs it.

    Attributes:
        name: of the check.
        reason: why it is expected to fail; None: it is not.
    """

    def __init__(self, name: str, kit: Callable[[], Kit], reason: str | None) -> None:
        self.name = name
        self.reason = reason
        self._kit = kit

    def run(self) -> Outcome:
        """What comes of it."""
        kit = self._kit()
        try:
            CHECKS[self.name](kit)
        except Failed as verdict:
            said = (verdict.sentence, verdict.where)
            if self.reason is not None:
                return Outcome(self.name, "expected", *said, reason=self.reason)
            repeat = again(kit.subject.spec, kit.subject.label, self.name, kit.seed)
            return Outcome(self.name, "failed", *said, again=repeat)
        except Skipped as verdict:
            return Outcome(self.name, "skipped", str(verdict), reason=self.reason or "")
        except Unreached as verdict:
            return Outcome(self.name, "unreached", str(verdict), reason=self.reason or "")
        status: Any = "passed" if self.reason is None else "unexpected"
        return Outcome(self.name, status, reason=self.reason or "")

    def __call__(self) -> Outcome:
        """Run it, as a test.

        Raises:
            ConformanceError: it fails, or passes though it is expected to fail.
        """
        outcome = self.run()
        if outcome.is_bad:
            raise ConformanceError(str(outcome))
        return outcome

    def __repr__(self) -> str:
        return self.name


def bind_checks(
    policy: PolicyLike | Subject,
    *,
    expected_failures: Mapping[str, str] | None = None,
    seed: int = 0,
    checks: Collection[str] | None = None,
    plugins: Sequence[object] = (),
) -> list[BoundCheck]:
    """The checks of a policy, which share their runs; see :func:`check_policy` for the arguments.

    Raises:
        ConfigError, PluginError: the policy cannot be made, or a name is no check's.
    """
    expected = dict(expected_failures or {})
    for name in (*expected, *(checks or ())):
        if name not in CHECKS:
            raise ConfigError(f"there is no check {name!r}; {did_you_mean(name, CHECKS)}")
    for name, reason in expected.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"expected_failures: {name!r} needs its reason in words, not {reason!r}")
    made: list[Kit] = []
    subject = policy if isinstance(policy, Subject) else Subject(policy, plugins)

    def kit() -> Kit:
        if not made:
            made.append(Kit(subject, seed))
        return made[0]

    chosen = [name for name in CHECKS if checks is None or name in checks]
    return [BoundCheck(name, kit, expected.get(name)) for name in chosen]


def run_checks(
    policy: PolicyLike | Subject,
    expected_failures: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    checks: Collection[str] | None = None,
    plugins: Sequence[object] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run the checks and tell, whatever they find; the other arguments are those of :func:`check_policy`.

    Args:
        progress: told after each check how many are done, and how many there are.

    Returns:
        What came of each check; ``report.ok`` is false where one failed, or none could say what it is about.

    Raises:
        ConfigError, PluginError: the policy cannot be made, or a name is no check's.
    """
    subject = policy if isinstance(policy, Subject) else Subject(policy, plugins)
    bound = bind_checks(subject, expected_failures=expected_failures, seed=seed, checks=checks)
    report = Report(subject.label, seed)
    for done, one in enumerate(bound, 1):
        report.outcomes.append(one.run())
        if progress is not None:
            progress(done, len(bound))
    return report


def check_policy(
    policy: PolicyLike,
    expected_failures: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    checks: Collection[str] | None = None,
    plugins: Sequence[object] = (),
) -> Report:
    """Hold a policy to the contract, on generated states.

    Args:
        policy: an object (for each run it is made anew from its class and parameters, where its constructor takes
            ``params``, else copied); a class or a function that makes one, called without arguments; or what a config
            may say: a name, ``name:param=value``, ``file.py:Class``, or a mapping of decisions to any of these.
        expected_failures: check to the reason why this policy fails it; one that passes all the same is an error.
        seed: of the generated states; the same seed gives the same states and decisions.
        checks: names of the checks to run; None: all of :data:`CHECKS`.
        plugins: objects with hookimpls, or classes of such, that run beside the policy: wrappers, observers.

    Returns:
        What came of each check.

    Raises:
        ConformanceError: a check failed, or was not reached; each that failed has a sentence on what was expected,
            what the policy did, where, and how to see it again.
        ConfigError, PluginError: the policy cannot be made, or a name is no check's.
    """
    report = run_checks(policy, expected_failures=expected_failures, seed=seed, checks=checks, plugins=plugins)
    if not report.ok:
        raise ConformanceError(str(report))
    return report


def parametrize_checks(
    policy: PolicyLike,
    expected_failures: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    checks: Collection[str] | None = None,
    plugins: Sequence[object] = (),
) -> Any:
    """A decorator: the test below it runs once for each check, as its argument ``check``.

        @parametrize_checks(MyPolicy)
        def test_conformance(check):
            check()

    pytest is imported when this is called. A check that is not about this policy skips its test, and one that fails
    as expected is an xfail. The arguments are those of :func:`check_policy`.
    """
    import pytest

    options: dict[str, Any] = {"seed": seed, "checks": checks, "plugins": plugins}
    bound = bind_checks(policy, expected_failures=expected_failures, **options)
    return pytest.mark.parametrize("check", [pytest.param(PytestCheck(b), id=b.name) for b in bound])


class PytestCheck:
    """A check as a test of pytest's: what is skipped or not reached skips, what fails as expected is an xfail."""

    def __init__(self, check: BoundCheck) -> None:
        self.check = check

    def __call__(self) -> None:
        """Run it.

        Raises:
            ConformanceError: it fails, or passes though it is expected to fail.
        """
        import pytest

        __tracebackhide__ = True
        outcome = self.check()
        if outcome.status in ("skipped", "unreached"):
            pytest.skip(outcome.detail)
        if outcome.status == "expected":
            pytest.xfail(f"{outcome.reason}: {outcome.detail}")

    def __repr__(self) -> str:
        return self.check.name
