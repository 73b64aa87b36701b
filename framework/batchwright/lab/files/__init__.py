"""Experiments on disk: a folder of records, and the result files of other tools."""

from batchwright.lab.files.folder import Folder
from batchwright.lab.files.keys import task_key
from batchwright.lab.files.manifest import Manifest, run_labels
from batchwright.lab.files.vllm_result import is_vllm_result, read_vllm_result

__all__ = ["Folder", "Manifest", "is_vllm_result", "read_vllm_result", "run_labels", "task_key"]
