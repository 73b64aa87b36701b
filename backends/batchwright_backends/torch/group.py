"""The ranks that run one model together, as each of them sees it.

Every rank is a process with its own device, its shard of the weights and its KV heads. transformers' tensor-parallel
plans say what is split; their collectives run over torch.distributed's default group.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def _nobody() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one model.

    Attributes:
        rank: of this process, from 0; rank 0 samples.
        size: number of ranks.
        meet: returns when every rank has come this far, however long one of them takes.
    """

    rank: int = 0
    size: int = 1
    meet: Callable[[], None] = _nobody

    def device(self, name: str) -> torch.device:
        """Where this rank computes, for a device of that name (``cpu`` or ``cuda``)."""
        return torch.device(name, self.rank) if self.size > 1 and name != "cpu" else torch.device(name)

    def share_of_host(self, num_bytes: int | None) -> int | None:
        """What of the host's memory this rank may take, where all ranks are on it; None: unknown."""
        return None if num_bytes is None else num_bytes // self.size

    def least(self, number: int, device: torch.device) -> int:
        """The smallest of the ranks' numbers."""
        if self.size == 1:
            return number
        tensor = torch.tensor(number, device=device)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return int(tensor)

    def load_options(self) -> dict[str, Any]:
        """What transformers' ``from_pretrained`` is told, to load this rank's shard."""
        if self.size == 1:
            return {}
        from transformers.distributed.configuration_utils import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=self.size)}

    def share_whole_weights(self, model: Any) -> None:
        """Give all ranks rank 0's values of the weights that are not split."""
        from torch.distributed.tensor import DTensor

        for tensor in (*model.parameters(), *model.buffers()):
            if not isinstance(tensor, DTensor):
                dist.broadcast(tensor.data, 0)


ALONE = Group()
"""One process, one device."""


def join(device: torch.device, group: Group, rendezvous: str, timeout_s: float) -> None:
    """Join the default process group of torch.distributed; returns when all ranks have.

    Args:
        device: of this rank.
        group: with its rank.
        rendezvous: a file that does not exist, the same for all ranks.
        timeout_s: seconds that a collective waits for the other ranks before it fails.
    """
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def leave() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def abort() -> None:
    """Give up what this rank's device is doing with the others: on a GPU it would wait for them without end.

    Not yet run on a GPU.
    """
    if dist.is_initialized():
        world: Any = dist.group.WORLD
        world.abort()


@contextmanager
def surroundings(group: Group) -> Iterator[None]:
    """The environment that transformers and gloo read while they set up ranks.

    All ranks are on this machine, so gloo takes the loopback interface: by itself it would look the machine's name up,
    which need not lead anywhere.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    wanted = {"LOCAL_RANK": str(group.rank)}
    if loopback is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
        wanted["GLOO_SOCKET_IFNAME"] = loopback
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
