"""Every number format known to llmb, one value each: to add a format is to add a value here.

A format is data (``Format``): the emulator of ``llmb.reference`` rounds to any format. A plugin may
declare data for a format that is missing here (``Precision.format``). A name listed here always
means the data here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from llmb.reference.elements import Element, Format

__all__ = [
    "KNOWN",
    "NARROW_BITS",
    "UNKNOWN",
    "Element",
    "Format",
    "PrecisionClass",
    "checked",
    "class_of",
    "fault_of",
    "narrower",
]

#: Pattern of a format's name, which stands in file names, tables and rankings.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._+-]{0,23}")
#: Look-alike characters, and characters that do not make a different word.
_ALIKE = str.maketrans("OIL", "011", "._+-")
#: Least explicit bits of the significand of a wide format: the bits of BF16.
_WIDE = 7
#: A format of 8 bits or fewer rounds the layers of blocks alone, in one of many ways.
NARROW_BITS = 8
#: Bits of formats whose steps can be replayed (rule L1), unless weights or moments are kept in this
#: dtype: moments underflow, or steps are left out where scaled gradients overflow. Narrower formats
#: are not replayed in any dtype, and FP16 is not replayed either.
_REPLAYED_BITS, _UNREPLAYED = range(NARROW_BITS, 16), "float16"
_LIVE, _STALE = 1.5, 1.1


@dataclass(frozen=True)
class PrecisionClass:
    """A number format, and the limits for an honest run in the format.

    Bits are -log2 of a relative error. The defaults are derived from the data (``_derived``).
    """

    name: str
    bits: int
    #: How products are emulated; None: torch computes them in ``dtype``.
    format: Format | None
    #: Torch's name of the dtype that a model must be cast to; None: any.
    dtype: str | None
    #: Fewest bits of a branch, and of the logits through all layers, of an honest run that serves
    #: as a yardstick: results of a tampered library must not become a yardstick.
    floor: float
    floor_of_logits: float
    #: Largest honest error through all layers, and of a parameter. A parameter with a larger honest
    #: error tells nothing.
    most_error: float
    most_part_error: float
    #: Bits that a branch may lack beside an honest run (docs/adr/0013), and the mean of all.
    slack: float = 0.75
    slack_of_mean: float = math.inf
    #: Times the honest error: all gradients together, and the worst parameter (docs/adr/0013).
    times: tuple[float, float] = (1.5, 2.0)
    times_of_logits: float = 1.5
    #: True: runs in a wider format of more than 8 bits are compared with this format's border too.
    #: Runs in 8 bits or fewer are compared with every narrower format.
    landmark: bool = False
    #: True: data come from a plugin, limits follow from the data, no honest run was measured.
    declared: bool = False

    @property
    def least_live(self) -> float:
        """Fewest median bits of a probe that was computed with the present weights and tokens.

        Old weights and tokens had 1.05 at most (docs/adr/0017); NVFP4 and MXFP4, with nearest and
        stochastic rounding, 1.6 or more (docs/adr/0034).
        """
        return min(_LIVE, self.floor + 0.5)

    @property
    def is_too_rough(self) -> bool:
        """Tell whether an honest run may look like a run that computes nothing."""
        return self.least_live <= _STALE


def _derived(name: str, data: Format, **more: Any) -> PrecisionClass:
    """Return a class with limits that follow from the format's data.

    The floors are 0.7 and 0.4 times the explicit bits of the significand of the roughest operand:
    below the measured floors of TF32 (10 bits: 8 and 6), BF16 (7: 5 and 3) and FP8 (2: 2 and 1).
    An honest error above 2/3 tells nothing: 1.5 times 2/3 is the error of a run that computes
    nothing. In 24 layers NVFP4 and MXFP4 are 0.45 and 0.49 off, the worst parameter 1. Honest
    recipes differ in scaling and rounding: one branch lacks 0.9 bits, the mean of all 0.3
    (docs/adr/0034).
    """
    bits = data.significant_bits
    most, of_part = (2.0**-2, 2.0**-3) if bits >= _WIDE else (2 / 3, 1.0)
    if data.bits <= NARROW_BITS:
        more = {"slack": 1.0, "slack_of_mean": 0.5, **more}
    floor, of_logits = 0.7 * bits, 0.4 * bits
    return PrecisionClass(name, data.bits, data, None, floor, of_logits, most, of_part, **more)


_TF32 = Element(8, 10, (2 - 2.0**-10) * 2.0**127)
_E4M3, _E5M2 = Element(4, 3, 448.0, scale="float32"), Element(5, 2, 57344.0, scale="float32")

#: Of OCP Microscaling (MX) v1.0: 32 elements share a power of two.
_MX_E4M3 = Element(4, 3, 448.0, scale="e8m0", block=32)
_MX_E5M2 = Element(5, 2, 57344.0, scale="e8m0", block=32)
_MX_E3M2 = Element(3, 2, 28.0, scale="e8m0", block=32)
_MX_E2M1 = Element(2, 1, 6.0, scale="e8m0", block=32)
_NV_E2M1 = Element(2, 1, 6.0, scale="e4m3", block=16)

#: Widest first: the order of display, and of the search for a run's effective precision.
#: If a name allows several elements, the data are the roughest: MXFP8 may round gradients to
#: E4M3 or E5M2, MXFP6 both to E2M3 or E3M2.
KNOWN: tuple[PrecisionClass, ...] = (
    PrecisionClass("FP64", 64, None, "float64", 15.0, 12.0, 2.0**-10, 2.0**-11),
    # Float32 has room: the next class is ten bits below, and kernels differ more in the last place.
    PrecisionClass(
        "FP32",
        32,
        None,
        "float32",
        15.0,
        12.0,
        2.0**-10,
        2.0**-11,
        slack=2.0,
        times=(4.0, 6.0),
        times_of_logits=4.0,
    ),
    PrecisionClass(
        "TF32", 19, Format(_TF32, head=True), "float32", 8.0, 6.0, 2.0**-2, 2.0**-3, landmark=True
    ),
    PrecisionClass("FP16", 16, None, "float16", 5.0, 5.0, 2.0**-2, 2.0**-3),
    PrecisionClass("BF16", 16, None, "bfloat16", 5.0, 3.0, 2.0**-2, 2.0**-3, landmark=True),
    _derived("MXFP8", Format(_MX_E4M3, _MX_E5M2)),
    PrecisionClass(
        "FP8", 8, Format(_E4M3, _E5M2), None, 2.0, 1.0, 2.0**-0.3, 2.0**-1.3, landmark=True
    ),
    _derived("MXFP6", Format(_MX_E3M2)),
    # The published recipe lacks 0.31 at most, one scale for the whole tensor 0.47 at least.
    _derived("NVFP4", Format(_NV_E2M1), slack_of_mean=0.4),
    # Stochastic rounding of every operand lacks 0.53.
    _derived("MXFP4", Format(_MX_E2M1), slack_of_mean=0.6),
)
_RENAME = "use a name of its own"
#: The reason why a run in an unknown format cannot be judged, and a remedy.
UNKNOWN = (
    "llmb does not know this format, so nothing shows what an honest run in it computes: declare "
    "its numbers in Precision(format=...), see docs/plugins.md"
)
_BY_NAME = {each.name: each for each in KNOWN}


def class_of(name: str, data: Format | None) -> PrecisionClass | None:
    """Return the class of a format by ``name``, or by ``data`` for a name unknown to llmb.

    None without a class and data: nobody but the plugin then knows the result of an honest run.
    """
    known = _BY_NAME.get(name)
    if known is None and data is not None:
        return _derived(name, data, declared=True)
    return known


def narrower(than: PrecisionClass) -> tuple[PrecisionClass, ...]:
    """Return the known classes to compare a run in a class with, widest first.

    Each class costs two more passes of the honest model. A run in more than 8 bits is compared with
    the landmarks alone, such as TF32, BF16 and FP8.
    """
    if than.name in _BY_NAME:
        below = KNOWN[KNOWN.index(than) + 1 :]
    else:
        below = tuple(each for each in KNOWN if each.bits < than.bits)
    return tuple(each for each in below if each.landmark or than.bits <= NARROW_BITS)


def fault_of(name: str, bits: int, dtype: str, data: Format | None) -> str | None:
    """Return the part of a format that contradicts the name, None for a consistent format.

    A known name means llmb's own data. A name that looks like a known name has the known bits.
    """
    if not _NAME.fullmatch(name):
        return f"{name!r} as its name: use up to 24 of A-Z a-z 0-9 . _ + -, a letter first"
    if dtype == "float64":
        return "dtype 'float64', and no wider one to judge it by: use 'float32'"
    known = _BY_NAME.get(name.upper())
    if known is not None:
        if data not in (None, known.format):
            return f"data that are not those of {known.name}: {_RENAME}, or leave format out"
        if known.dtype not in (None, dtype):
            return f"dtype {dtype!r}, that name is for {known.dtype!r}: {_RENAME}"
        if bits != known.bits:
            return f"{bits} bits, {known.name} has {known.bits}: {_RENAME}"
        if name != known.name:
            return f"{name!r} as its name: write {known.name}"
        return _fault_of_dtype(bits, dtype)
    word = name.upper().translate(_ALIKE)
    for each in KNOWN:
        if each.name in word and bits < each.bits:
            return f"{bits} bits, {each.name} has {each.bits}: {_RENAME}"
    if data is None:
        return None
    if bits != data.bits:
        return f"{bits} bits, the narrowest operand of its data has {data.bits}"
    return _fault_of_dtype(bits, dtype)


def _fault_of_dtype(bits: int, dtype: str) -> str | None:
    if bits not in _REPLAYED_BITS or dtype != _UNREPLAYED:
        return None
    return (
        f"dtype {dtype!r}, in which no step of {bits} bits can be compared with an honest run's: "
        "use 'bfloat16' or 'float32'"
    )


class _Named(Protocol):
    name: str
    bits: int
    dtype: str
    format: Format | None


P = TypeVar("P", bound=_Named)


def checked(precision: P) -> P:
    """Return ``precision`` if the declared data agree with the name.

    Raises:
        ValueError: data and name disagree.
    """
    if precision.format is not None:
        fault = fault_of(precision.name, precision.bits, precision.dtype, precision.format)
        if fault is not None:
            raise ValueError(f"{precision.name} has {fault}")
    return precision
