"""Records of any workload in any mode, made from nothing: raw stamps, and metrics that follow."""

from __future__ import annotations

from dataclasses import asdict

from llmb import workloads
from llmb.config import Mode
from llmb.measure.metrics import metrics_of
from llmb.records.run_record import RepeatTiming
from llmb.workloads.arithmetic import flops_of, parameter_count
from tests.builders import edited, make_record

NEW_TOKENS = 200


def with_metrics(record):
    """Return ``record`` with the metrics that the first path gives it."""
    peak = record.result.mfu.peak_flops if record.result.mfu else None
    found = metrics_of(
        record.config,
        workloads.of(record.config),
        record.timing,
        record.workload.tokens_per_step,
        peak,
    )
    update = {"metrics": [metric.model_dump() for metric in found]}
    return edited(record, lambda data: data["result"].update(update))


def fenced_after_every_step(timing):
    """Return the stamps of a worker with a fence after every step, where a step is a call."""
    steps = range(timing.warmup_steps, timing.warmup_steps + timing.timed_steps + 1)
    stamps = [timing.step_ns[k - 1] + 50_000 for k in steps]
    update = {
        "fence_steps": tuple(steps),
        "fence_ns": tuple(stamps),
        "fence_worker_ns": tuple(ns - 20_000 for ns in stamps),
        "start_ns": stamps[0],
        "stop_ns": stamps[-1],
    }
    return timing.model_copy(update=update)


def of_workload(name, mode=None, *, definition=None, batch_size=8, **timing):
    """Return a record of workload ``name`` whose stamps are raw and whose metrics are right."""
    workload = workloads.find(name, {}, definition)
    mode, shape = mode or workload.modes[0], workload.shape
    record = make_record(1)
    repeat = record.timing.repeats[0]
    if mode is not Mode.TRAIN:
        repeat = fenced_after_every_step(repeat)
    repeat = RepeatTiming.model_validate({**repeat.model_dump(), **timing})
    tokens = NEW_TOKENS if mode is Mode.GENERATE else shape.sequence_length

    def change(data):
        data["config"] |= {"workload": name, "mode": mode.value, "batch_size": batch_size}
        data["config"] |= {"definition": definition}
        data["config"]["mixed_precision"] = workload.recipe.mixed_precision
        data["workload"] |= {
            "name": name,
            "mode": mode.value,
            "family": workload.family,
            "shapes": asdict(shape),
            "parameters": parameter_count(shape),
            "flops_per_token": flops_of(mode, shape),
            "tokens_per_step": tokens * batch_size,
        }
        dumped = repeat.model_dump(mode="json")
        data["timing"] |= {**dumped, "repeats": [dumped]}
        data["topology"]["ranks"][0]["fence_ns"] = dumped["fence_ns"]

    return with_metrics(edited(record, change))
