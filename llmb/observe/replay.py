"""Replay a single AdamW or SGD step from recorded inputs, element by element (rule O2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe.places import VECTOR
from llmb.observe.step_sampler import KINDS
from llmb.records.audited import AuditedStep
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer


def replay(
    step: AuditedStep, seen: Mapping[str, Tensor], device: str, constants: Optimizer
) -> dict[str, Tensor]:
    """Return value and moments after ``step``, from the gradients and the values before ``step``.

    ``seen`` holds the worker's samples as float32, by name such as ``12/before/value``. torch's
    optimizer runs with the same kernel, dtypes and step counter on ``device``; keys are
    ``<step>/replayed/<kind>``.
    """
    prefix = f"{step.index}/"
    kinds = KINDS[: 1 + constants.moments]
    parts = {
        what: torch.split(seen[prefix + what], [segment.states for segment in step.segments])
        for what in ("replay/gradient", *(f"before/{kind}" for kind in kinds))
    }

    def part(what: str, number: int) -> Tensor:
        value, segment = parts[what][number], step.segments[number]
        # Kernels treat the remainder after full vectors differently. A partial sample has no
        # remainder; a parameter read in full is padded to full vectors.
        if segment.states == step.states:
            value = F.pad(value, (0, -segment.states % VECTOR))
        return value.to(device, getattr(torch, segment.dtype), copy=True)  # stepped in place

    parameters = []
    for number in range(len(step.segments)):
        parameter = nn.Parameter(part("before/value", number))
        parameter.grad = part("replay/gradient", number)
        parameters.append(parameter)
    optimizer = build_optimizer(
        parameters, constants, foreach=step.foreach, fused=step.fused, capturable=step.capturable
    )
    # Put the counter where this build of torch keeps counters: on the device for some kernels.
    beside = device if step.fused or step.capturable else "cpu"
    for number, parameter in enumerate(parameters if constants.moments else ()):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step.steps_before or 0), device=beside),
            **{moment: part(f"before/{moment}", number) for moment in KINDS[1:]},
        }
    optimizer.step()
    found = {}
    for kind in kinds:
        values = [p.detach() if kind == "value" else optimizer.state[p][kind] for p in parameters]
        kept = zip(values, step.segments, strict=True)
        found[f"{prefix}replayed/{kind}"] = torch.cat(
            [value[: segment.states].to("cpu").float() for value, segment in kept]
        )
    return found


def can_replay(step: AuditedStep, seen: Mapping[str, Tensor], constants: Optimizer) -> bool:
    """Tell whether all inputs of the replay were read: with moments, not in the first step."""
    kinds = KINDS[: 1 + constants.moments]
    wanted = ("replay/gradient", *(f"{w}/{k}" for w in ("before", "after") for k in kinds))
    if not step.segments or (constants.moments and step.steps_before is None):
        return False
    return all(f"{step.index}/{w}" in seen for w in wanted)
