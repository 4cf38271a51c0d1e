"""The formats a plugin offers: does each format match its name?"""

from __future__ import annotations

import torch

from llmb.config import Precision, Refused
from llmb.formats import UNKNOWN, fault_of
from llmb.sdk.report import CheckError
from llmb.sdk.subject import Subject


def offered(subject: Subject) -> tuple[Precision, ...]:
    """Return the offered formats, without the refused formats."""
    _ = subject.backend  # only a machine with a device is asked for formats
    formats = subject.plugin.precisions(subject.config)
    return tuple(each for each in formats if isinstance(each, Precision))


def formats(subject: Subject) -> str:
    """Compare every format with torch's dtypes and with the format's own name."""
    found = offered(subject)
    for precision in found:
        dtype = getattr(torch, precision.dtype, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise CheckError(
                f"{precision.name}: torch {torch.__version__} has no floating-point dtype "
                f"{precision.dtype!r}; dtype is what the model is cast to, such as 'bfloat16'"
            )
        bits = torch.finfo(dtype).bits
        if precision.bits > bits:
            raise CheckError(
                f"{precision.name} has {precision.bits} bits and is stored in the {bits} of "
                f"{precision.dtype}: bits are those of an operand as it is multiplied"
            )
        fault = fault_of(precision.name, precision.bits, precision.dtype, precision.format)
        if fault is not None:
            raise CheckError(f"{precision.name} has {fault}")
    if {p.name for p in offered(subject)} != {p.name for p in found}:
        raise CheckError("llmb_precisions returned other formats the second time")
    return ", ".join(map(_remarked, found))


def _remarked(precision: Precision) -> str:
    remarks = ["slow"] * precision.is_slow
    if precision.judged_as is None:
        remarks.append(f"UNVERIFIED: {UNKNOWN}")
    return precision.name + (f" ({', '.join(remarks)})" if remarks else "")


def refusals(subject: Subject) -> str:
    """Check every refusal for a reason."""
    _ = subject.backend  # only with a device
    refused = [f for f in subject.plugin.precisions(subject.config) if isinstance(f, Refused)]
    for each in refused:
        if not each.reason.strip():
            raise CheckError(f"{each.name} is refused without a reason: say why, for whoever asks")
    return ", ".join(each.name for each in refused) or "none refused"


def native(subject: Subject) -> str:
    """Look for a format that `llmb run` can choose by itself."""
    found = [precision.name for precision in offered(subject) if precision.native]
    if not found:
        raise CheckError(
            "llmb_precisions offers no native format, so `llmb run` has nothing to choose: "
            "implement the hook, and say native=False only of what the hardware emulates"
        )
    return ", ".join(found)
