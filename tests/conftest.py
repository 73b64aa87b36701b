"""Settings of all tests: property tests are reproducible, keep no database, and know no deadline."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "batchwright",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("batchwright")

# A shell starts what runs in its background with interrupts ignored, and processes started from there ignore them too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
