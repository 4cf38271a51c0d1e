"""The measured precision recipe: the number format of each matrix product of a step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmb.config import Frozen

FORWARD: Literal["forward"] = "forward"
INPUT: Literal["input gradient"] = "input gradient"
WEIGHT: Literal["weight gradient"] = "weight gradient"
Direction = Literal["forward", "input gradient", "weight gradient"]
#: Attention scores, and the product of scores and values.
QK, PV = "QK^T", "PV"
#: Name of a product: "q", "gate", "head", "QK^T", or the name of another family's matrices.
ProductName = Annotated[str, Field(min_length=1, max_length=100)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]


class PairSeen(Frozen):
    """The difference of two results of one product that exact arithmetic would make equal."""

    product: ProductName
    direction: Direction
    layer: int = Field(ge=0)
    #: Norm of the difference, and of the exact result; both 0 if not finite.
    difference: float = Field(ge=0)
    length: float = Field(ge=0)


class PairsEvidence(Frozen):
    """The results of the probe ``pairs`` of a worker, and the types of torch's state."""

    seen: tuple[PairSeen, ...] = Field(default=(), max_length=100_000)
    #: The reason for an empty ``seen``; None if pairs were measured.
    obstacle: str | None = Field(default=None, max_length=500)
    #: Torch's names of the types of stored parameters, of gradients and of optimizer moments.
    weights: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()


class RecipeRow(Frozen):
    """One kind of product in one direction, in the layers with the same measured format."""

    product: ProductName
    direction: Direction
    #: Name of the format; None: not measured.
    format: str | None
    #: Number of layers.
    layers: int = Field(ge=1)
    #: Share of the FLOPs of a training step, attention counted as a full square.
    flops_share: Share
    #: Explicit bits of the significand, the fewest among these layers.
    significand_bits: float | None = None
    #: The reason for a missing measurement.
    why: str | None = None


class FormatShare(Frozen):
    """A format, and the format's share of the FLOPs of a step; None: not measured."""

    format: str | None
    flops_share: Share


class StateRow(Frozen):
    """A part of a step other than matrix products, with data types; None: not measured."""

    name: str
    value: str | None
    #: The method of measurement, or the reason for a missing measurement.
    how: str


class PrecisionRecipe(Frozen):
    """The measured precision of a run: of matrix products, and of the state between products."""

    rows: tuple[RecipeRow, ...]
    #: The largest first; the sum is 1.
    shares: tuple[FormatShare, ...]
    #: The narrowest measured format, and the format with the largest share.
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
    """Return ``shares`` in whole per cents with the sum 100; a small share is "<1 %"."""
    floors = [int(100 * share + 1e-9) for share in shares]
    order = sorted(range(len(shares)), key=lambda n: floors[n] - 100 * shares[n])
    for n in order[: max(0, round(100 * sum(shares)) - sum(floors))]:
        floors[n] += 1
    return [f"{floor} %" if floor else "<1 %" for floor in floors]
