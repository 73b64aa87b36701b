"""Recording decisions, and replaying them: regression traces of a policy.

``DecisionRecorder`` writes what a scheduler decided, ``replay`` decides again and compares.
"""

from batchwright.replay.reading import read_cases
from batchwright.replay.recorder import DecisionRecorder
from batchwright.replay.replaying import replay
from batchwright.replay.report import Difference, ReplayReport

__all__ = ["DecisionRecorder", "Difference", "ReplayReport", "read_cases", "replay"]
