"""Rule P2 from the text of a program: the types of its matrix products fit the declared precision.

Devices that record a step and run it later show the program as HLO: one instruction a line, every
result and operand with its type, as in ``%d = bf16[8,4]{1,0} dot(bf16[8,2]{1,0} %a, ...)``.
"""

from __future__ import annotations

import re
from collections import Counter

from llmb.config import Precision
from llmb.records.finding import Finding, Level, Status

#: A text may be anything a stranger wrote: every part has a longest length, so that the search
#: takes time in proportion to the text and no more.
_TYPE = r"([a-z][a-z0-9]{1,15})\[[^\]\n]{0,200}\](?:\{[^}\n]{0,200}\})?"
_PRODUCT = re.compile(rf"= {_TYPE} (?:dot|convolution)\({_TYPE} [^,()\n]{{1,200}}, {_TYPE} ")
_MOST_KINDS = 20  # that are written out
_CUSTOM = re.compile(r"\bcustom-call\(")
_BITS = re.compile(r"(?:bf|f|s|u)([0-9]+)")


def judge(text: str, precision: Precision, path: str) -> Finding:
    """Return P2 from program ``text``, which lies at ``path`` in the run directory."""
    products = Counter(_PRODUCT.findall(text))
    narrowest = min((_bits(t) for types in products for t in types[1:]), default=None)
    seen = ", ".join(
        f"{count} {left} x {right} -> {result}"
        for (result, left, right), count in products.most_common(_MOST_KINDS)
    )
    if len(products) > _MOST_KINDS:
        seen += f", {len(products) - _MOST_KINDS} other kinds"
    custom = len(_CUSTOM.findall(text))
    if custom:
        seen += f"{'; ' if seen else ''}{custom} custom calls, whose types do not show"
    if narrowest is None:
        status, message = Status.NOT_OBSERVED, "the program shows no matrix product"
    elif narrowest < precision.bits:
        status = Status.FLAG
        message = f"products of {narrowest}-bit operands in a run declared {precision.name}"
    else:
        status, message = Status.PASS, "no matrix product is narrower than declared"
    return Finding(
        id="P2",
        level=Level.FLAG,
        status=status,
        observer="worker",
        measured=seen or None,
        honest=f"operands of {precision.bits} bits or more",
        basis="fixed",
        message=message,
        evidence=(path,),
    )


def _bits(name: str) -> int:
    # f8e4m3fn, f8e5m2 and the like: the digits after the first letters; pred is one bit.
    found = _BITS.match(name)
    return int(found.group(1)) if found else 1
