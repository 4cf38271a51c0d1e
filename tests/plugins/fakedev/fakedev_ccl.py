"""The fake device's library of collectives, fakeccl: through the host's memory, with gloo.

A group written in Python is enough for DDP. FSDP and tensor parallelism would want one in C++.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, Work, _create_work_from_future


def register() -> None:
    """Tell torch.distributed that fakeccl is what ranks on fakedev communicate with."""
    dist.Backend.register_backend("fakeccl", FakeCcl, devices=["fakedev"])


def done(result: object) -> Work:
    """Return work that is done already."""
    future: torch.futures.Future[object] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


class FakeCcl(dist.ProcessGroup):
    """What DDP asks of a library, done on the host."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._name = self._desc = ""

    # torch keeps names with a group's backends, of which one written in Python has none.
    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def allreduce(self, tensors, opts=None):
        for tensor in tensors:
            host = tensor.cpu()
            self._gloo.allreduce([host], opts or dist.AllreduceOptions()).wait()
            tensor.copy_(host)
        return done(tensors)

    def broadcast(self, tensors, opts=None):
        for tensor in tensors:
            host = tensor.cpu()
            self._gloo.broadcast([host], opts or dist.BroadcastOptions()).wait()
            tensor.copy_(host)
        return done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        for parts, mine in zip(outputs, inputs, strict=True):
            hosts = [part.cpu() for part in parts]
            self._gloo.allgather([hosts], [mine.cpu()]).wait()
            for part, host in zip(parts, hosts, strict=True):
                part.copy_(host)
        return done(outputs)

    def barrier(self, opts=None):
        self._gloo.barrier().wait()
        return done(None)
