"""The mesh of ranks, in torch.distributed's words: one dimension for each way to share a model."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from llmb.config import Parallelism

#: From the outermost: ranks of the last dimension are neighbours, and share a host if they can.
DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "tp")


class Mesh:
    """Which ranks share what."""

    def __init__(
        self, parallelism: Parallelism, device_type: str, limit: timedelta | None = None
    ) -> None:
        """Lay the ranks of the default process group out: a collective call.

        A rank waits for others ``limit`` long: torch gives groups of some ranks its own default.
        """
        sizes = parallelism.model_dump()
        self.sizes: dict[str, int] = {name: sizes[name] for name in DIMENSIONS}
        options: Any = None
        if limit is not None and dist.get_backend() == "gloo":
            # Its messages between two ranks wait as long as was said when their group was made.
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = limit
        self._whole: DeviceMesh = init_device_mesh(
            device_type,
            tuple(self.sizes.values()),
            mesh_dim_names=DIMENSIONS,
            backend_override=dict.fromkeys(DIMENSIONS, options) if options else None,
        )
        if limit is not None:
            for name in DIMENSIONS:
                _set_pg_timeout(limit, self._whole.get_group(name))

    def part(self, *names: str) -> DeviceMesh:
        """Return the ranks that this one shares ``names`` with."""
        whole: Any = self._whole
        found: DeviceMesh = whole[names if len(names) > 1 else names[0]]
        return found

    def place(self, name: str) -> int:
        """Return where this rank stands in dimension ``name``."""
        return self._whole.get_local_rank(name)

    @property
    def replica(self) -> int:
        """Which part of a step's sequences this rank takes."""
        return self.place("dp_replicate") * self.sizes["dp_shard"] + self.place("dp_shard")
