"""Rule P2: the dtypes of a step's matrix products fit the declared precision.

Two kinds of evidence exist. Devices that record a step and run the step later show the program as
HLO: one instruction a line, with the dtypes of result and operands. Example: ``%d = bf16[8,4]{1,0}
dot(bf16[8,2]{1,0} %a, ...)``. On other devices the worker counts the operators of a step by dtype.

P2 only flags, because dtypes are no proof. A kernel may compute in fewer bits than the operands
have, and a kernel called past torch's dispatcher shows no dtypes. P1 measures bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from llmb.audit.bench import Bench
from llmb.audit.rule import Evidence, Rule
from llmb.config import Precision
from llmb.records import evidence
from llmb.records.evidence import OperatorTypes, TypesEvidence, bits_of_numbers
from llmb.records.finding import Finding, Level, Status

#: A hostile text may contain anything: every part has a maximum length, to keep the search time
#: proportional to the length of the text.
_TYPE = r"([a-z][a-z0-9]{1,15})\[[^\]\n]{0,200}\](?:\{[^}\n]{0,200}\})?"
_PRODUCT = re.compile(rf"= {_TYPE} (?:dot|convolution)\({_TYPE} [^,()\n]{{1,200}}, {_TYPE} ")
_MOST_KINDS = 20  # kinds written out in a finding
_CUSTOM = re.compile(r"\bcustom-call\(")
_BITS = re.compile(r"(?:bf|f|s|u)([0-9]+)")


PROGRAM = Evidence(evidence.PROGRAM, lambda data: data.decode(errors="replace"))
TYPES = Evidence(evidence.TYPES, TypesEvidence.model_validate_json)
P2 = Rule(
    "P2",
    Level.FLAG,
    "the types seen computing fit the declared precision",
    measured="one observed step and the compiled programs, or the device's own program text",
    limit="no operand of a matrix product is narrower than declared",
    cannot_see="kernels called without torch's dispatcher",
    evidence=(PROGRAM, TYPES),
    any_evidence=True,
    causes=(
        "a scaled or quantised product that the library chooses by itself for some shapes",
        "autocast left on around a part of the model in an FP32 run",
    ),
)
RULES = (P2,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield P2, from the device's own program where available."""
    fmt, text = bench.facts.precision, bench.read(PROGRAM)
    if text is not None:
        yield judge_program(text, fmt, bench.path(PROGRAM))
    else:
        yield judge_census(bench.needed(TYPES), fmt, bench.path(TYPES))


def judge_program(text: str, precision: Precision, path: str) -> Finding:
    """Return P2 from program ``text``, stored at ``path`` in the run directory."""
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
    return _finding(status, message, seen, precision, path)


def judge_census(seen: TypesEvidence, precision: Precision, path: str) -> Finding:
    """Return P2 from the operators of one step, stored at ``path`` in the run directory.

    Three cases are flagged. First, a product with an operand narrower than declared, of floating
    point or of integers of at most 8 bits (scales and other operands may be wider). Second, a cast
    to a narrow dtype: an emulated product casts down and widens again. Third, a narrow dtype at an
    operator of another library, because the operator's name does not tell the operation. In the
    third case unsigned bytes are allowed: unsigned bytes are workspaces and random states.
    """
    every = (*seen.executed, *seen.compiled)
    narrow = [entry for entry in every if _is_narrow(entry, precision.bits)]
    products = sum(entry.calls for entry in every if entry.kind == "product")
    if narrow:
        status = Status.FLAG
        message = f"in a run declared {precision.name}: {_listed(narrow)}"
    elif not products:
        status, message = Status.NOT_OBSERVED, "no matrix product was seen"
    else:
        status, message = Status.PASS, "no matrix product seen is narrower than declared"
    remarks = (message, *_remarks(seen, every, precision))
    return _finding(status, "; ".join(remarks), _summary(seen), precision, path)


def _is_narrow(entry: OperatorTypes, bits: int) -> bool:
    if entry.kind == "product":
        return _any_below(bits, entry.operands)
    # Casts are listed only where the result has 8 bits or fewer. At a foreign operator 16 bits
    # under FP32 may be anything, such as a table of positions.
    if entry.kind == "cast":
        return _any_below(min(bits, 9), entry.results)
    types = (*entry.operands, *entry.results)
    return _any_below(min(bits, 9), (t for t in types if not t.startswith("uint")))


def _any_below(bits: int, types: Iterable[str]) -> bool:
    return any((bits_of_numbers(t) or bits) < bits for t in types)


def _remarks(
    seen: TypesEvidence, every: Iterable[OperatorTypes], precision: Precision
) -> Iterable[str]:
    operands = {t for entry in every if entry.kind == "product" for t in entry.operands}
    equal = {t for t in operands if bits_of_numbers(t) == bits_of_numbers(precision.dtype)}
    others = sorted(equal - {precision.dtype})
    if others:
        yield f"operands of {', '.join(others)} are as wide as {precision.dtype}"
    foreign = [entry for entry in every if entry.kind == "foreign"]
    if foreign:
        yield f"what operators of other libraries do does not show: {_listed(foreign)}"
    if seen.obstacle is not None:
        yield f"what ran outside compiled programs is not known ({seen.obstacle})"
    if seen.unread_frames:
        yield (
            f"{seen.unread_frames} of {seen.compiled_frames} compiled frames do not show their "
            "program, only what they ask of torch"
        )
    yield "kernels called past torch's dispatcher do not show"


def _summary(seen: TypesEvidence) -> str:
    parts = []
    if seen.executed:
        parts.append(f"one step ran {_listed(seen.executed)}")
    if seen.compiled:
        parts.append(f"compiled programs hold {_listed(seen.compiled)}")
    return "; ".join(parts)


def _listed(entries: Sequence[OperatorTypes]) -> str:
    counts: Counter[str] = Counter()
    for entry in entries:
        text = f"{entry.operator.removeprefix('aten::')}({', '.join(entry.operands)})"
        if entry.kind != "product":
            text += f" -> {', '.join(entry.results)}"
        counts[text] += entry.calls
    listed = ", ".join(f"{count} {text}" for text, count in counts.most_common(_MOST_KINDS))
    more = len(counts) - _MOST_KINDS
    return f"{listed}, {more} other kinds" if more > 0 else listed


def _finding(status: Status, message: str, seen: str, precision: Precision, path: str) -> Finding:
    honest = f"operands of {precision.bits} bits or more"
    return P2.finding(status, message, measured=seen or None, honest=honest, evidence=(path,))


def _bits(name: str) -> int:
    # The digits after the first letters, in f8e4m3fn, f8e5m2 and similar names; pred is one bit.
    found = _BITS.match(name)
    return int(found.group(1)) if found else 1
