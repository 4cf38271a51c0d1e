"""How many programs torch.compile has made so far: a counter every fence reads."""

from __future__ import annotations

import sys


def torchs_own() -> dict[str, float]:
    """Return ``{"compilations": n}`` for this process, nothing if nothing was ever compiled.

    torch.compile counts the graphs it compiled, recompilations included, under a private name; a
    torch without it is one whose compilations are not known.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    graphs = counters["stats"]["unique_graphs"] if "stats" in counters else 0
    return {"compilations": float(graphs)} if graphs else {}
