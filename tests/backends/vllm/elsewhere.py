"""Python in a process of its own, in which vLLM may run a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""So that two processes of vLLM's get along on a small machine, and nothing is downloaded."""


def environment() -> dict[str, str]:
    """Of such a process; it finds the modules of the benchmarks too."""
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **ENVIRONMENT, "COLUMNS": "120", "PYTHONPATH": path}


def python(*arguments: str, code: int = 0, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
    """Run the Python of this environment, and wait for it.

    Args:
        arguments: its own.
        code: with which it is to end.
        timeout_s: seconds that it may take.
    """
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment())
    assert done.returncode == code, done.stderr[-3000:]
    return done


class Asked:
    """A script that runs, and answers each line of JSON with one.

    Args:
        process: with pipes for both.
        log: what it says otherwise.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def __call__(self, question: dict[str, Any], timeout_s: float = 600) -> dict[str, Any]:
        """Its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        timer = Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            line = next((line for line in self._process.stdout if line.startswith("{")), None)
        finally:
            timer.cancel()
        assert line is not None, f"{question} has no answer: {self._log.read_text(errors='replace')[-3000:]}"
        return dict(json.loads(line))


@contextmanager
def asking(folder: Path, *arguments: str) -> Iterator[Asked]:
    """Start such a script, and end it."""
    log = folder / "log"
    with (
        log.open("w") as err,
        subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=environment(),
        ) as process,
    ):
        try:
            yield Asked(process, log)
        finally:
            process.terminate()
