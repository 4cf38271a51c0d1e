"""The link from a run to the repeated bundle: bundles are immutable, so links point backwards.

``llmb.reproduction`` derives the repetitions of a bundle from such links, which are never written
into the repeated bundle.
"""

from __future__ import annotations

from pydantic import Field

from llmb.config import Frozen


class Original(Frozen):
    """The bundle that a run repeats, and the bundle's stated throughput."""

    #: sha256 of the bundle's manifest.
    bundle_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    tokens_per_second: float = Field(gt=0)
    ci95: tuple[float, float] | None


class ReproductionOf(Original):
    """The repeated bundle in the record of the repetition, with the difference in throughput."""

    #: Tokens per second of this run minus those of the original, in percent of the original.
    difference_percent: float
