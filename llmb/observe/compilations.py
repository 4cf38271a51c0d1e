"""Read the number of programs compiled by torch.compile, a counter read at every fence."""

from __future__ import annotations

import sys


def torchs_own() -> dict[str, float]:
    """Return ``{"compilations": n}`` for this process, ``{}`` before any compilation.

    torch.compile counts compiled graphs, recompilations included, under a private name. In a torch
    version without the private name, compilations are unknown and the result is ``{}``.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    graphs = counters["stats"]["unique_graphs"] if "stats" in counters else 0
    return {"compilations": float(graphs)} if graphs else {}
