"""One of two ranks: what both must have alike, and what each must have of its own.

``python alike.py RANK PORT OUTPUT``; rank 0 writes what both ranks have found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from llmb.config import Parallelism, RankAddress
from llmb.parallel.layout import Layout
from llmb.parallel.mesh import Mesh
from llmb.parallel.ranks import Ranks
from llmb.parallel.scaler import SharedGradScaler
from llmb.parallel.shards import local
from tests.unit.builders_runtime import run_config

PLACEMENTS: tuple[Placement, ...] = (Replicate(), Shard(0))


def stepped(rank: int, mesh: Mesh, *, overflows: bool) -> dict[str, float]:
    """Return the scale, and an element of the shard that is sound, after one step of AdamW."""
    part = mesh.part("tp")

    def spread(local: torch.Tensor, placement: Placement) -> DTensor:
        return DTensor.from_local(local, part, [placement])

    # The replicated one comes first: by its placement torch would share nothing.
    parameters = [nn.Parameter(spread(torch.ones(4), placement)) for placement in PLACEMENTS]
    scaler = SharedGradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.AdamW(parameters, lr=0.5, weight_decay=0.0)
    for parameter, placement in zip(parameters, PLACEMENTS, strict=True):
        gradient = torch.full((4,), 8.0)
        if overflows and rank == 1 and isinstance(placement, Shard):
            gradient[0] = torch.inf
        parameter.grad = spread(gradient, placement)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    last = local(parameters[1].detach())[-1]
    return {"scale": scaler.get_scale(), "weight": float(last)}


def masks() -> dict[str, list[float]]:
    """Return the mask that dropout draws in ranks that share a replica, and in replicas."""
    found = {}
    for name in ("tp", "dp_replicate", "dp_shard"):
        Layout(run_config(parallelism=Parallelism(**{name: 2}), seed=5))
        found[name] = nn.functional.dropout(torch.ones(64)).tolist()
    return found


def main(rank: int, port: int, output: Path) -> None:
    """Leave what came of a step with an overflow and of one without, and which masks were drawn."""
    place = RankAddress(
        rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="127.0.0.1", port=port
    )
    with Ranks(place, "gloo", 0, 60.0, sys.exit) as ranks:
        mesh = Mesh(Parallelism(tp=2), "cpu")
        steps = [stepped(rank, mesh, overflows=overflows) for overflows in (True, False)]
        every = ranks.gather({"steps": steps, "masks": masks()})
        if place.leads:
            output.write_text(json.dumps(every))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
