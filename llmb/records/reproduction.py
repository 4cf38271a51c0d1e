"""The link from a run to the bundle that it repeats: bundles are immutable, so it points backwards.

Which runs repeat a bundle is derived from these links (``llmb.reproduction``), never written into
the bundle itself.
"""

from __future__ import annotations

from pydantic import Field

from llmb.config import Frozen


class Original(Frozen):
    """The bundle that a run repeats, and what it says it attained."""

    #: sha256 of its manifest.
    bundle_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    tokens_per_second: float = Field(gt=0)
    ci95: tuple[float, float] | None


class ReproductionOf(Original):
    """That bundle as the record of the repetition has it, and how far the two are apart."""

    #: How much more tokens per second there are here than in the original, in percent of those.
    difference_percent: float
