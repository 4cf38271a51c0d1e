"""The mesh of ranks (torch's ``DeviceMesh``): a dimension for each kind of parallelism.

Example: 16 ranks as pp=2, dp_replicate=1, dp_shard=4, tp=2.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from llmb.config import Parallelism

#: Outermost first: ranks of ``tp`` have adjacent numbers, and are on the same host if possible.
DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "tp")


class Mesh:
    """The ranks of each parallel dimension, and this rank's index in each dimension."""

    def __init__(
        self, parallelism: Parallelism, device_type: str, limit: timedelta | None = None
    ) -> None:
        """Arrange the ranks of the default process group in a mesh: a collective call.

        ``limit`` is the timeout of each subgroup; torch would give subgroups its own default.
        """
        sizes = parallelism.model_dump()
        self.sizes: dict[str, int] = {name: sizes[name] for name in DIMENSIONS}
        options: Any = None
        if limit is not None and dist.get_backend() == "gloo":
            # Point-to-point messages of gloo keep the timeout from the creation of the group.
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
        """Return the submesh of dimensions ``names`` with this rank."""
        whole: Any = self._whole
        found: DeviceMesh = whole[names if len(names) > 1 else names[0]]
        return found

    def place(self, name: str) -> int:
        """Return the index of this rank in dimension ``name``."""
        return self._whole.get_local_rank(name)

    @property
    def replica(self) -> int:
        """The index of this rank's data shard: the part of a step's sequences for this rank."""
        return self.place("dp_replicate") * self.sizes["dp_shard"] + self.place("dp_shard")
