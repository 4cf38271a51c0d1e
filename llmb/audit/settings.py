"""Rule P3: settings and variables that affect precision, and the accumulator width of products.

P3 is context for the reader and never changes the verdict. Example: ``allow_tf32``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmb.audit.bench import Bench
from llmb.audit.rule import Evidence, Rule
from llmb.records import evidence
from llmb.records.evidence import LitmusEvidence, SettingsEvidence
from llmb.records.finding import Finding, Level, Status

_SETTING = re.compile(r"precision|tf32|reduc|accum|default_dtype", re.IGNORECASE)
_VARIABLE = re.compile(
    r"environment\..*(TF32|FP32|BF16|FP16|FP[468]|FPMATH|PRECISION|DOWNCAST|ACCUM|MATH_MODE)"
)
_SIGNIFICANT = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
_NAMED_AT_MOST = 6


SETTINGS = Evidence(evidence.SETTINGS, SettingsEvidence.model_validate_json)
LITMUS = Evidence(evidence.LITMUS, LitmusEvidence.model_validate_json)
P3 = Rule(
    "P3",
    Level.NOTE,
    "precision settings and accumulator width",
    measured="settings before and after; sums that are correct only in a wide accumulator",
    limit="none: context",
    cannot_see="switches of a library unknown to torch",
    evidence=(SETTINGS,),
)
RULES = (P3,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield P3."""
    sums = bench.read(LITMUS)
    where = bench.path(LITMUS) if sums is not None else None
    yield finding(bench.needed(SETTINGS), sums, bench.path(SETTINGS), where)


def finding(
    settings: SettingsEvidence,
    litmus: LitmusEvidence | None,
    path: str,
    litmus_path: str | None = None,
) -> Finding:
    """Return P3 from the settings of one worker, in ``path``, and the litmus of the device.

    ``litmus`` is None where no honest run measured the accumulator.
    """
    steered = [*_changes(settings), *_variables(settings)]
    narrow = [] if litmus is None else [*_narrow(litmus)]
    remarks = [*narrow, *steered]
    more = len(remarks) - _NAMED_AT_MOST
    if more > 0:
        remarks = [*remarks[:_NAMED_AT_MOST], f"{more} more"]
    ordinary = not remarks and litmus is not None
    return P3.finding(
        Status.PASS if ordinary else Status.NOTE,
        "; ".join(remarks)
        or ("nothing bears on precision but the declared format" if litmus else _NOT_TAKEN),
        observer="calibrator" if litmus else "worker",
        measured=None if litmus is None else _measured(litmus),
        honest=None if litmus is None else _honest(litmus),
        evidence=(path,) if litmus_path is None else (path, litmus_path),
    )


_NOT_TAKEN = "no setting bears on precision; the width of products was not measured"


def _changes(settings: SettingsEvidence) -> Iterator[str]:
    for name in sorted({*settings.before, *settings.after}):
        before, after = settings.before.get(name), settings.after.get(name)
        if before != after and _SETTING.search(name) and not name.startswith("environment."):
            yield f"{name} {before or 'unset'} -> {after or 'unset'}"


def _variables(settings: SettingsEvidence) -> Iterator[str]:
    for name, value in sorted(settings.after.items()):
        if _VARIABLE.match(name):
            yield f"{name.removeprefix('environment.')}={value}"


def _narrow(litmus: LitmusEvidence) -> Iterator[str]:
    if litmus.ones != litmus.length:
        yield f"{litmus.length} ones add up to {litmus.ones:g}"
    if litmus.kept != 1:
        wide = int(litmus.big).bit_length()
        yield f"{litmus.big:g} + 1 - {litmus.big:g} is {litmus.kept:g}: sums keep under {wide} bits"
    if litmus.operand_bits < _SIGNIFICANT.get(litmus.dtype, 0):
        yield f"products keep {litmus.operand_bits} significant bits of a {litmus.dtype} operand"


def _measured(litmus: LitmusEvidence) -> str:
    wide = int(litmus.big).bit_length()
    sums = f"{wide} bits or more" if litmus.kept == 1 else f"under {wide} bits"
    return f"{litmus.dtype}: operands of {litmus.operand_bits} bits, sums of {sums}"


def _honest(litmus: LitmusEvidence) -> str:
    bits = _SIGNIFICANT.get(litmus.dtype, "all")
    return f"operands of {bits} bits, sums of {int(litmus.big).bit_length()} or more"
