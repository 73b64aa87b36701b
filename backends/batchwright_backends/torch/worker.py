"""A rank of a tensor-parallel model other than rank 0: a process that runs each step that it is told of.

``python -m batchwright_backends.torch.worker FD`` is started by :mod:`batchwright_backends.torch.workers`, and by
nobody else. It ends when its parent ends the connection, or dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from batchwright_backends.torch.wire import Report, Start, unpack


def main(descriptor: int) -> None:
    """Serve the connection with that file descriptor until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what it means
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, or wants no more
    except BaseException as error:
        _report_failure(connection, error)
        _leave(1)
    _leave(0)


def serve(connection: Connection) -> None:
    """Load the shard, then run steps.

    Raises:
        EOFError: the parent closed the connection.
    """
    start: Start = connection.recv()
    import torch

    from batchwright_backends.torch.backend import TorchBackend
    from batchwright_backends.torch.group import Group, join, surroundings

    def meet() -> None:
        connection.send(Report("loaded"))
        connection.recv_bytes()

    group = Group(start.rank, start.size, meet)
    device = group.device(start.device_name)
    torch.set_num_threads(start.num_threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    connection.send(Report("here"))
    with surroundings(group):
        join(device, group, start.rendezvous, start.timeout_s)
        backend = TorchBackend.create(start.device_name, start.settings, group)
    connection.send(Report("ready"))
    while True:
        backend.runner.logits(unpack(connection.recv_bytes()))


def _report_failure(connection: Connection, error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)
    cause = str(error) if type(error).__name__.endswith(("BackendError", "ConfigError")) else ""
    with contextlib.suppress(OSError):
        connection.send(Report("failed", cause or f"{type(error).__name__}: {error}"))


def _end_with(parent: int) -> None:
    """End this process when its parent has died, also while it waits for ranks that do not come."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _leave(code: int) -> None:
    """End at once: destructors of process groups would wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
