"""A process for each run, so that one engine of vLLM leaves nothing to the next: memory, threads, groups of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import BackendError, ConfigError
from batchwright.lab.executors.processes import pack_error, unpack_error
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.run_record import RunRecord
from batchwright.lab.workload import Workload
from batchwright_backends.vllm.lab.advice import advice, ended_by_itself
from batchwright_backends.vllm.lab.options import check_config

_OF_THIS_PROCESS = ("backend", "policy", "plugins", "on_engine")
_STOP = "stop"
_LOOK_S = 0.2
_GRACE_S = 30.0
"""Seconds that a run has to end after Ctrl-C: its present step, and vLLM's shutdown."""


def run_elsewhere(config: EngineConfig, workload: Workload, options: Mapping[str, Any]) -> RunRecord:
    """Run an arm in a process of its own.

    Args:
        config: of the arm.
        workload: what to offer.
        options: of :func:`~batchwright.lab.run_arm`.

    Raises:
        ConfigError: an option is wrong, or an object of this process is among them.
        WorkloadError, PluginError, BackendError, PolicyError: as ``run_arm``.
        KeyboardInterrupt: Ctrl-C came before vLLM was ready.
    """
    own = check_config(config)
    given = [name for name in _OF_THIS_PROCESS if options.get(name)]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: objects of this process, and {config.backend} runs in one of its own; name policy "
            "and plugins in the config instead"
        )
    progress = options.get("progress")
    left = {name: value for name, value in options.items() if name not in (*_OF_THIS_PROCESS, "progress", "installed")}
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), name="vllm-run")  # no daemon: vLLM has workers of its own
    process.start()
    theirs.close()
    began, is_ready, give_up = time.monotonic(), False, float("inf")
    try:
        with Interrupts() as interrupts:
            connection.send((config, workload, left))
            while True:
                if interrupts.asked and give_up == float("inf"):
                    if not is_ready:
                        raise KeyboardInterrupt
                    connection.send(_STOP)
                    give_up = time.monotonic() + _GRACE_S
                if time.monotonic() > give_up:
                    raise KeyboardInterrupt
                if not is_ready and time.monotonic() - began > own.start_timeout_s:
                    raise BackendError(
                        f"{config.backend}: vLLM was not ready after {own.start_timeout_s:g} s; raise "
                        "backend_options.start_timeout_s, or see its log with VLLM_LOGGING_LEVEL=INFO"
                    )
                if not connection.poll(_LOOK_S):
                    continue
                kind, value = connection.recv()
                if kind == "progress":
                    is_ready = True
                    if progress is not None:
                        progress(options.get("arm") or "", value, len(workload))
                elif kind == "done":
                    record: RunRecord = value
                    return record
                else:
                    raise unpack_error(*value)
    except (EOFError, ConnectionError):
        process.join(_GRACE_S)
        raise BackendError(
            f"{config.backend}: vLLM's process ended by itself: {ended_by_itself(process.exitcode)}"
        ) from None
    finally:
        connection.close()
        _end(process)


def _end(process: Any) -> None:
    process.join(_GRACE_S if process.exitcode is None and not sys.exc_info()[0] else 1.0)
    if process.is_alive():
        process.terminate()
        process.join(_GRACE_S)
    if process.is_alive():
        process.kill()
        process.join()


# In the other process -------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """Run what comes, once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked says when to end
    sys.stdout.flush()
    os.dup2(2, 1)  # vLLM's log goes to stdout, which is for the report
    warnings.simplefilter("ignore")  # of vLLM's modules about each other
    try:
        config, workload, options = connection.recv()
    except (EOFError, OSError):
        return
    try:
        run_here = load_run(config.backend)
        answer: tuple[str, Any] = "done", run_here(config, workload, options, _Reporter(connection))
    except Exception as error:
        answer = "failed", pack_error(error)
    try:
        connection.send(answer)
    except (OSError, ValueError):  # whoever asked is gone
        return


def load_run(backend: str) -> Callable[..., RunRecord]:
    """What runs an arm here: importing it imports vLLM.

    Raises:
        BackendError: it cannot be imported; with what helps.
    """
    try:
        from batchwright_backends.vllm.lab.run import run_here
    except Exception as error:  # of a library that it imports, anything
        raise BackendError(
            f"{backend}: vLLM cannot be imported: {type(error).__name__}: {error}; {advice(error)}"
        ) from error
    return run_here


class _Reporter:
    """Tells how far a run is, and hears whether it is to end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = False

    def __call__(self, num_ended: int) -> bool:
        """As ``Tell``."""
        try:
            self._connection.send(("progress", num_ended))
            while self._connection.poll():
                self._asked = self._connection.recv() == _STOP or self._asked
        except (EOFError, OSError):
            self._asked = True
        return self._asked
