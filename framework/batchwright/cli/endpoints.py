"""Arms that are running servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from batchwright.cli.arms import Arm
from batchwright.cli.options import StopOptions
from batchwright.errors import ConfigError
from batchwright.lab.endpoint.address import Address
from batchwright.lab.endpoint.servers import Servers


def default_label(arm: Arm) -> str:
    """The name of a single arm that has none: its policy's, or its server's host and port."""
    return Address.parse(arm.config.backend).label if arm.is_endpoint else arm.policy().name


def check_endpoints(arms: Sequence[Arm], stop: StopOptions) -> None:
    """Before anything runs: say which endpoints are not there. Their arms fail, and the others run all the same.

    Raises:
        ConfigError: steps are to be counted, which are not seen at an endpoint.
    """
    endpoints = [arm for arm in arms if arm.is_endpoint]
    if not endpoints:
        return
    if stop.max_steps is not None:
        raise ConfigError(
            f"--max-steps {stop.max_steps}: arm {endpoints[0].label} is an endpoint, whose steps are not seen; use "
            "--max-seconds or --limit"
        )
    servers = Servers.ask(arm.config for arm in endpoints)
    failed = [(arm, error) for arm in endpoints if (error := servers.error(arm.config)) is not None]
    if len(failed) < len(arms):  # else nothing runs, and the error is all there is to say
        for arm, error in failed:
            print(f"warning: arm {arm.label} fails, and the others run: {error}", file=sys.stderr, flush=True)
