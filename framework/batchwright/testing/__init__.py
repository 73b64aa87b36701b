"""For those who write policies and plugins: the conformance kit, ``drive`` for tests of a few requests, and the
executable specification of a step.

    from batchwright.testing import parametrize_checks

    @parametrize_checks("my_policy")
    def test_conformance(check):
        check()

Names are imported when they are first used; pytest only by those that need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchwright.testing.conformance import CHECKS, check_policy, parametrize_checks, run_checks
    from batchwright.testing.jobs import Job, drive
    from batchwright.testing.reference import Reference
    from batchwright.testing.report import ConformanceError, Outcome, Report
    from batchwright.testing.tape import Tape

_HOME = {
    "CHECKS": "batchwright.testing.conformance",
    "ConformanceError": "batchwright.testing.report",
    "Job": "batchwright.testing.jobs",
    "Outcome": "batchwright.testing.report",
    "Reference": "batchwright.testing.reference",
    "Report": "batchwright.testing.report",
    "Tape": "batchwright.testing.tape",
    "check_policy": "batchwright.testing.conformance",
    "drive": "batchwright.testing.jobs",
    "parametrize_checks": "batchwright.testing.conformance",
    "run_checks": "batchwright.testing.conformance",
}

__all__ = [
    "CHECKS",
    "ConformanceError",
    "Job",
    "Outcome",
    "Reference",
    "Report",
    "Tape",
    "check_policy",
    "drive",
    "parametrize_checks",
    "run_checks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'batchwright.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
