"""Experiments on disk: a folder of records, and the result files of other tools."""

from batchwright.lab.files.folder import Folder
from batchwright.lab.files.keys import task_key
from batchwright.lab.files.manifest import Manifest, run_labels

__all__ = ["Folder", "Manifest", "run_labels", "task_key"]
