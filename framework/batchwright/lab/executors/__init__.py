"""Where the runs of an experiment are executed: one after the other, over processes, or over Ray."""

from batchwright.lab.executors.choice import EXECUTORS, choose_executor
from batchwright.lab.executors.executor import Executor, Keep, Outcome
from batchwright.lab.executors.task import Task

__all__ = ["EXECUTORS", "Executor", "Keep", "Outcome", "Task", "choose_executor"]
