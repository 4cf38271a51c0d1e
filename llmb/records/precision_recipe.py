"""The measured precision recipe: which format each matrix product of a step was seen to keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmb.config import Frozen

FORWARD: Literal["forward"] = "forward"
INPUT: Literal["input gradient"] = "input gradient"
WEIGHT: Literal["weight gradient"] = "weight gradient"
Direction = Literal["forward", "input gradient", "weight gradient"]
#: Scores, and their product with the values.
QK, PV = "QK^T", "PV"
#: Of a product: "q", "gate", "head", "QK^T", or the name of another family's matrices.
ProductName = Annotated[str, Field(min_length=1, max_length=100)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]


class PairSeen(Frozen):
    """Of one product in one layer: how far apart lies what is equal in exact arithmetic."""

    product: ProductName
    direction: Direction
    layer: int = Field(ge=0)
    #: Norm of the difference, and of what both should be; both 0 where they were not finite.
    difference: float = Field(ge=0)
    length: float = Field(ge=0)


class PairsEvidence(Frozen):
    """What the probe ``pairs`` of a worker showed, and in which types torch held its state."""

    seen: tuple[PairSeen, ...] = Field(default=(), max_length=100_000)
    #: Why nothing was seen; None where something was.
    obstacle: str | None = Field(default=None, max_length=500)
    #: torch's names of the types of stored parameters, their gradients and the optimizer's moments.
    weights: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()


class RecipeRow(Frozen):
    """One kind of product in one direction, in the layers that measured alike."""

    product: ProductName
    direction: Direction
    #: Name of the format; None: not measured.
    format: str | None
    #: How many layers.
    layers: int = Field(ge=1)
    #: Of the FLOPs of a training step, attention counted as a full square.
    flops_share: Share
    #: Explicit bits of the significand, the fewest among these layers.
    significand_bits: float | None = None
    #: Why it was not measured.
    why: str | None = None


class FormatShare(Frozen):
    """A format, and its share of the FLOPs of a step; None: not measured."""

    format: str | None
    flops_share: Share


class StateRow(Frozen):
    """Something of a step that is no matrix product, with its types; None: not measured."""

    name: str
    value: str | None
    #: How it was seen, or why it was not.
    how: str


class PrecisionRecipe(Frozen):
    """The measured precision of a run: of its matrix products, and of what lies between them."""

    rows: tuple[RecipeRow, ...]
    #: The largest first; they add up to 1.
    shares: tuple[FormatShare, ...]
    #: The narrowest format that was measured, and the one with the largest share.
    lowest: str | None
    largest: str | None
    state: tuple[StateRow, ...]

    @property
    def headline(self) -> str:
        """The shares in one line. Example: "94 % FP8, 6 % BF16"; "not measured" of nothing."""
        if self.largest is None:
            return "not measured"
        percents = _whole_percents([share.flops_share for share in self.shares])
        return ", ".join(
            f"{percent} {share.format or 'not measured'}"
            for percent, share in zip(percents, self.shares, strict=True)
        )


def _whole_percents(shares: list[float]) -> list[str]:
    """Return ``shares`` in whole per cents that add up to 100; a small one is "<1 %"."""
    floors = [int(100 * share + 1e-9) for share in shares]
    order = sorted(range(len(shares)), key=lambda n: floors[n] - 100 * shares[n])
    for n in order[: max(0, round(100 * sum(shares)) - sum(floors))]:
        floors[n] += 1
    return [f"{floor} %" if floor else "<1 %" for floor in floors]
