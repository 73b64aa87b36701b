"""The report as a page: ``report.html``."""

from __future__ import annotations

from importlib.util import find_spec

from batchwright.errors import ConfigError

_NEEDED = ("matplotlib", "jinja2")


def missing_for_reports() -> str | None:
    """What figures and pages need and is not installed, and how it comes; None: all is there."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: pip install 'batchwright[report]'"


def need_report(what: str) -> None:
    """Check that figures and pages can be made, before a long run.

    Args:
        what: was asked for, such as ``--figures DIR``.

    Raises:
        ConfigError: they cannot; the message says how to get there.
    """
    missing = missing_for_reports()
    if missing is not None:
        raise ConfigError(f"{what}: {missing}")
