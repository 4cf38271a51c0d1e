"""Number formats of operands as data: what one generic emulator rounds to. No torch is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: One scale for a block, or for the whole tensor: any float32, a power of two (E8M0 of the OCP
#: Microscaling specification), or an E4M3 number beside one float32 for the whole tensor (NVFP4).
Scale = Literal["none", "float32", "e8m0", "e4m3"]
Rounding = Literal["nearest", "stochastic"]

#: The emulator computes in float32: with three bits less of the significand it rounds exactly, and
#: fixed-point numbers, of which there is only one spacing, up to INT16.
_MOST_EXPONENT_BITS, _MOST_MANTISSA_BITS, _MOST_FIXED_BITS = 8, 20, 15
_FLOAT32_END = 128
#: A block longer than a row is the whole row.
_MOST_BLOCK = 65_536


@dataclass(frozen=True)
class Element:
    """A floating-point number: 1 sign bit, ``exponent_bits``, ``mantissa_bits``; and its scale.

    The exponent's bias is 2^(exponent_bits - 1) - 1 and numbers below the smallest normal one are
    subnormal, as in IEEE 754. Without exponent bits it is a fixed-point number: a multiple of
    2^-mantissa_bits. Example, E2M1 of MXFP4: ``Element(2, 1, 6.0, scale="e8m0", block=32)`` holds
    0, 0.5, 1, 1.5, 2, 3, 4 and 6 with either sign, times a power of two for 32 elements.
    """

    #: For readers of JSON: nothing beyond the declared fields.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    exponent_bits: int
    mantissa_bits: int
    #: Largest finite number; larger ones become it, or infinity where nothing is scaled.
    largest: float
    scale: Scale = "none"
    #: Elements that share a scale, along the dimension that a product sums over; None: all of the
    #: tensor.
    block: int | None = None
    #: "nearest": ties to even. "stochastic": up or down with the probability that keeps the mean.
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        """Check every number.

        Raises:
            ValueError: a number that the emulator cannot compute with; the message names it.
        """
        _whole("exponent_bits", self.exponent_bits, 0, _MOST_EXPONENT_BITS)
        most_bits = _MOST_MANTISSA_BITS if self.exponent_bits else _MOST_FIXED_BITS
        _whole("mantissa_bits", self.mantissa_bits, 0, most_bits)
        if self.exponent_bits + self.mantissa_bits == 0:
            raise ValueError("exponent_bits and mantissa_bits are both 0: nothing but a sign")
        least, most = self.smallest_normal, self.binade_end
        if not least <= self.largest < most:
            raise ValueError(f"largest is {self.largest!r}, must be {least:g} to below {most:g}")
        if self.scale not in ("none", "float32", "e8m0", "e4m3"):
            raise ValueError(f"scale is {self.scale!r}, must be none, float32, e8m0 or e4m3")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding is {self.rounding!r}, must be nearest or stochastic")
        if self.block is not None:
            _whole("block", self.block, 2, _MOST_BLOCK)
        if self.scale == "none" and self.block is not None:
            raise ValueError(
                "block is the number of elements that share a scale, and scale is none"
            )
        if self.scale == "e4m3" and self.block is None:
            raise ValueError("scale e4m3 is that of a block: say block, 16 in NVFP4")

    @property
    def bits(self) -> int:
        """Bits of one number: sign, exponent and explicit significand."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def significant_bits(self) -> int:
        """Explicit bits of the significand that most values have.

        Of a fixed-point number 2 bits less: the largest of a block is 4 times as large as most.
        """
        return self.mantissa_bits if self.exponent_bits else max(0, self.mantissa_bits - 2)

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number; the spacing below it stays the same."""
        return 2 - 2 ** (self.exponent_bits - 1) if self.exponent_bits else 0

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number; the smallest of all above 0 without exponent bits."""
        if not self.exponent_bits:
            return float(2.0**-self.mantissa_bits)
        return float(2.0**self.least_exponent)

    @property
    def binade_end(self) -> float:
        """First power of two above every number; float32 ends there as well."""
        if not self.exponent_bits:
            return 1.0
        return float(2.0 ** min(2 ** (self.exponent_bits - 1) + 1, _FLOAT32_END))


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, must be a whole number from {least} to {most}")


@dataclass(frozen=True)
class Format:
    """The numbers that the operands of a linear layer's products are rounded to.

    Example, MXFP4 training: ``Format(forward=Element(2, 1, 6.0, scale="e8m0", block=32))``.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    #: Of activations and weights, in all three products.
    forward: Element
    #: Of the gradients of outputs; None: as ``forward``.
    backward: Element | None = None
    #: Whether the product that makes the logits is computed in the format too.
    head: bool = False

    @property
    def gradient(self) -> Element:
        """Numbers that the gradients of outputs are rounded to."""
        return self.forward if self.backward is None else self.backward

    @property
    def bits(self) -> int:
        """Bits of the narrowest operand."""
        return min(self.forward.bits, self.gradient.bits)

    @property
    def significant_bits(self) -> int:
        """Explicit bits of the significand of the roughest operand (``Element``)."""
        return min(self.forward.significant_bits, self.gradient.significant_bits)
