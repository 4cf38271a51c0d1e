"""Facts of a workload before a run: FLOPs, memory, source document, published figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from llmb.config import BF16, FP16, FP32, Mode, Precision
from llmb.workloads import published
from llmb.workloads.arithmetic import parameter_count, weight_bytes
from llmb.workloads.conventions import CONVENTIONS
from llmb.workloads.memory import MemoryJob, peak_memory, recipe_of
from llmb.workloads.workload import DOCUMENTS, Workload

#: float32 weights, gradients and moments, computing in BF16.
MIXED_BF16 = Precision(name="BF16 mixed", bits=16, dtype="bfloat16", master_weights=True)
_PRECISIONS = (FP32, MIXED_BF16, BF16, FP16)


def memory(workload: Workload) -> dict[str, int]:
    """Return bytes by precision: the peak of a training step at batch size 1 in llmb's loop.

    Workloads without mode train get the bytes of the weights. Example of a key: ``BF16 mixed``.
    """
    shape = workload.shape
    if Mode.TRAIN not in workload.modes:
        return {p.name: weight_bytes(shape, p) for p in _PRECISIONS}
    moments = workload.recipe.optimizer.moments
    jobs = {p.name: MemoryJob(shape, recipe_of(p), moments=moments) for p in _PRECISIONS}
    return {name: round(peak_memory(job).total) for name, job in jobs.items()}


def facts(workload: Workload) -> dict[str, Any]:
    """Return everything about ``workload`` as plain data; memory in bytes, FLOPs per token."""
    shape = workload.shape
    return {
        "name": workload.name,
        "family": workload.family,
        "document": workload.document,
        "document_name": None if workload.document is None else DOCUMENTS[workload.document],
        "modes": [mode.value for mode in workload.modes],
        "parameters": parameter_count(shape),
        "shapes": asdict(shape),
        "recipe": asdict(workload.recipe),
        "world_size": workload.world_size,
        "flops_convention": workload.convention,
        "flops_per_token": {
            name: convention.per_token(shape) for name, convention in CONVENTIONS.items()
        },
        "memory_bytes": memory(workload),
        "published": [
            {"source": document.source, "hardware": document.hardware, **table.model_dump()}
            for document, table in published.tables_of(workload.name)
        ],
        "notes": list(workload.notes),
    }
