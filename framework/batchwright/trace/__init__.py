"""Seeing what a policy does: each step as it was, and why each request ran or did not.

``Engine.trace()`` gives steps as they happen; ``ReasonRecorder`` writes reasons while an engine runs, and
``read_story`` tells one request's story from such a file.
"""

from __future__ import annotations

from batchwright.trace.reason import Reason
from batchwright.trace.recorder import ReasonRecorder
from batchwright.trace.story import Chapter, Story, read_story
from batchwright.trace.traced_step import TracedRequest, TracedStep
from batchwright.trace.tracer import Tracer

__all__ = ["Chapter", "Reason", "ReasonRecorder", "Story", "TracedRequest", "TracedStep", "Tracer", "read_story"]
