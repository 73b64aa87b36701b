"""Stamps on what is said of a request: who filled it in knows a secret, and did so a moment ago."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("vllm.batchwright")

MIDDLEWARE = "batchwright_backends.vllm.middleware.TrustedFields"
"""What makes them, in vLLM's server."""
HOLDS_S = 600.0
"""How long one holds, in seconds: whoever reads it in a log can use it no longer."""
_MANY = 100


class Stamps:
    """Makes stamps and knows them again; where they are not as they should be, the log says so, once.

    Args:
        key: the secret.
        clock_s: seconds, of a clock that both processes have.
    """

    def __init__(self, key: bytes, clock_s: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock_s = clock_s
        self._num_held = self._num_without = 0
        self._is_false_said = False

    def make(self, fields: Mapping[str, Any]) -> str:
        """One for these fields, from now on."""
        made_s = int(self._clock_s())
        return f"{made_s}:{self._of(fields, made_s)}"

    def holds(self, stamp: object, fields: Mapping[str, Any]) -> bool:
        """Whether this was made for these fields, and not long ago."""
        if stamp is None:
            self._note_without()
            return False
        try:
            made, _, rest = str(stamp).partition(":")
            is_ours = hmac.compare_digest(rest, self._of(fields, int(made)))
            if is_ours and abs(self._clock_s() - int(made)) <= HOLDS_S:
                self._num_held += 1
                return True
        except (TypeError, ValueError):  # no number, no ASCII: nobody of ours made it
            pass
        self._note_false()
        return False

    def _of(self, fields: Mapping[str, Any], made_s: int) -> str:
        said = {name: v if isinstance(v, str) else float(v) for name, v in fields.items()}
        lines = [str(made_s), *(f"{name}={value!r}" for name, value in sorted(said.items()))]
        return hmac.new(self._key, "\n".join(lines).encode(), "sha256").hexdigest()

    def _note_without(self) -> None:
        self._num_without += 1
        if self._num_without == _MANY and not self._num_held:
            logger.warning(
                "of none of %d requests it is said whose they are, so a policy cannot tell them apart: is vLLM started "
                "with --middleware %s, do the headers under 'trusted' come from the gateway, and do API keys stand "
                "there as their SHA-256?",
                _MANY,
                MIDDLEWARE,
            )

    def _note_false(self) -> None:
        if not self._is_false_said:
            self._is_false_said = True
            logger.warning(
                "a stamp on a request does not hold, and what it says for policies is not heard: BATCHWRIGHT_SECRET is "
                "not the same in vLLM's server and in its engine, their clocks are more than %d s apart, or somebody "
                "makes stamps up; further ones are not logged",
                HOLDS_S,
            )
