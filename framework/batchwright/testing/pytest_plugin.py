"""A pytest plugin: ``pytest --batchwright-policy NAME`` runs the conformance checks of a policy as tests.

In a test file of your own, :func:`batchwright.testing.parametrize_checks` does the same. Nothing of Batchwright's is
imported before the option is given.
"""

from __future__ import annotations

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("batchwright", "conformance of scheduling policies")
    group.addoption(
        "--batchwright-policy",
        action="append",
        default=[],
        metavar="POLICY",
        help="Check this policy too: NAME, NAME:param=value,..., file.py[:Class] or module[:Class]. Repeatable.",
    )
    group.addoption(
        "--batchwright-seed", type=int, default=0, metavar="N", help="Seed of the states that it is checked on."
    )


class ConformanceItem(pytest.Item):
    """One check of one policy."""

    def __init__(self, *, check: Any, label: str, **rest: Any) -> None:
        super().__init__(**rest)
        self._check = check
        self._label = label

    def runtest(self) -> None:
        """Run it."""
        from batchwright.testing.conformance import PytestCheck

        PytestCheck(self._check)()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The sentence alone: a traceback would show the kit, and not the policy."""
        from batchwright.testing.report import ConformanceError

        if isinstance(excinfo.value, ConformanceError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """What stands at the head of a failure."""
        return self.path, None, f"{self._label}: {self._check.name}"


@pytest.hookimpl(tryfirst=True)  # so that -k and the like select among them too
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks of the policies that were asked for."""
    asked = config.getoption("--batchwright-policy")
    if not asked:
        return
    from batchwright.errors import BatchwrightError
    from batchwright.plugins import load_plugins
    from batchwright.testing.conformance import bind_checks
    from batchwright.testing.finding import find_subjects

    try:
        installed = load_plugins()
        subjects = [subject for text in asked for subject in find_subjects(text, installed)]
    except BatchwrightError as error:
        raise pytest.UsageError(f"--batchwright-policy: {error}") from None
    seed = int(config.getoption("--batchwright-seed") or 0)
    for subject in subjects:
        for check in bind_checks(subject, seed=seed):
            name = f"{subject.label}[{check.name}]"
            items.append(ConformanceItem.from_parent(session, name=name, check=check, label=subject.label))
