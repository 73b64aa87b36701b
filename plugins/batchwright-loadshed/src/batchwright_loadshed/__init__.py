"""Load shedding for Batchwright: the policy ``bounded_wait``."""

from __future__ import annotations

from batchwright_loadshed.bounded_wait import BoundedWait, BoundedWaitParams
from batchwright_loadshed.prompt_rate import PromptRate

__all__ = ["BoundedWait", "BoundedWaitParams", "PromptRate"]
