"""Forged evidence: of another run, another model, another window, or of none."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from llmb import workloads
from llmb.measure import metrics, summary
from llmb.records import audited, evidence, references
from llmb.records.ceiling import Ceiling, Ceilings, GemmCeiling
from llmb.records.run_record import RepeatTiming, RunRecord
from llmb.submission import recompute_work
from llmb.workloads.arithmetic import flops_of, parameter_count
from tests.cheats.corpus import BUNDLE, RECORD
from tests.cheats.forging import (
    Files,
    Forgery,
    Runs,
    edited,
    judged_again,
    record_of,
    timed_again,
    with_record,
)

_FOLDER = "evidence/repeat-0"
_FENCES = f"{_FOLDER}/{evidence.FENCES}"
#: FLOP/s that a forger gives to products of the model that he did not run.
_RATE = 1e12


def fences_deleted(runs: Runs) -> Files:
    """The values read back by the fences are left out."""
    return {name: content for name, content in runs.honest.items() if name != _FENCES}


def fences_of_junk(runs: Runs) -> Files:
    """The values read back by the fences are replaced by junk bytes."""
    return runs.honest | {_FENCES: b"junk" * 1000}


def fences_of_numbers(runs: Runs) -> Files:
    """The parameters read back by the fences are wrong numbers, of the right shape."""
    from safetensors.torch import load, save

    tensors = load(runs.honest[_FENCES])
    return runs.honest | {_FENCES: save(tensors | {"parameters": tensors["parameters"] * 2})}


def fences_of_another(runs: Runs) -> Files:
    """Fence values, and the losses in the record, belong to a different run."""
    other = record_of(runs.other).timing.repeats[0]

    def edit(data: dict[str, Any]) -> None:
        _set_losses(data, other.loss_first, other.loss_last)

    return judged_again(timed_again(runs.honest | {_FENCES: runs.other[_FENCES]}, edit))


def losses_changed(runs: Runs) -> Files:
    """The losses in the record are lower than the losses read back."""

    def edit(data: dict[str, Any]) -> None:
        _set_losses(data, data["loss_first"] - 0.5, data["loss_last"] - 0.5)

    return judged_again(timed_again(runs.honest, edit))


def evidence_of_honest_run(runs: Runs) -> Files:
    """An INVALID run has the evidence, the plugin and the nonce of an honest one of its seed."""
    return judged_again(_borrowed(runs))


def evidence_renamed(runs: Runs) -> Files:
    """The same, and the evidence names the INVALID run."""
    files = _borrowed(runs)
    record, name = record_of(files), f"{_FOLDER}/{evidence.REPEAT}"
    named = json.loads(files[name]) | {"run_id": record.run_id}
    return judged_again(files | {name: json.dumps(named, indent=1).encode()})


def header_deleted(runs: Runs) -> Files:
    """The file with the run's name (`repeat.json`) is left out of the evidence."""
    name = f"{_FOLDER}/{evidence.REPEAT}"
    return {n: content for n, content in runs.honest.items() if n != name}


def called_older(runs: Runs) -> Files:
    """A run claims rules 2, without rule L1 and without a run's name in the evidence."""

    name = f"{_FOLDER}/{evidence.REPEAT}"
    kept = {n: content for n, content in runs.honest.items() if n != name}
    return judged_again(edited(kept, _make_older))


def tensor_of_no_parameter(runs: Runs) -> Files:
    """The gradients have a layer that the model lacks."""
    from safetensors.torch import load, save

    name = f"{_FOLDER}/{audited.GRADIENTS}"
    tensors = load(runs.honest[name])
    more = tensors["live/model.norm.weight"].clone()
    return runs.honest | {name: save(tensors | {"live/model.layers.12.mlp.up_proj.weight": more})}


def segment_too_long(runs: Runs) -> Files:
    """An audited step has more elements of a parameter than were sampled, all correct."""
    import torch
    from safetensors.torch import load, save

    steps = json.loads(runs.honest[f"{_FOLDER}/{audited.STEPS}"])
    (step, *_), more = steps["steps"], 64
    first = step["segments"][0]["states"]
    step["segments"][0]["states"] += more
    step["states"] = max(step["states"], first + more)
    files = {f"{_FOLDER}/{audited.STEPS}": json.dumps(steps, indent=1).encode()}
    for file in (audited.STEP_VALUES, audited.REPLAY):
        tensors = load(runs.honest[f"{_FOLDER}/{file}"])
        for name, tensor in tensors.items():
            its = name.startswith(f"{step['index']}/")
            if its and "asked" not in name and len(tensor):
                tensors[name] = torch.cat((tensor[:first], tensor[:more], tensor[first:]))
        files[f"{_FOLDER}/{file}"] = save(tensors)
    return judged_again(runs.honest | files)


def toy_called_official(runs: Runs) -> Files:
    """A run of two narrow layers is called llama-1.4b, and all numbers fit the name."""
    record = record_of(runs.toy)
    config = record.config.model_copy(update={"shape_overrides": {}})
    workload = workloads.of(config)
    tokens = workload.tokens_per_step(config.global_batch_size, config.new_tokens)
    facts = record.workload.model_copy(
        update={
            "parameters": parameter_count(workload.shape),
            "flops_per_token": flops_of(config.mode, workload.shape),
            "tokens_per_step": tokens,
            "shapes": asdict(workload.shape),
        }
    )
    repeats = [_stretched(one, 30) for one in record.timing.repeats]
    timing = summary.timing_of(repeats, tokens)
    changes = {"config": config, "workload": facts, "timing": timing}
    changes |= {"class_": "official", "waivers": ()}
    draft = record.model_copy(update=changes)
    ceilings = Ceilings(before=_ceiling(draft), after=_ceiling(draft))
    result = summary.result_of(timing, facts, 1, ceilings, None, None)
    named = metrics.metrics_of(config, workload, timing, tokens, None)
    first = record.topology.ranks[0].model_copy(update={"fence_ns": timing.fence_ns})
    whole = draft.model_copy(
        update={
            "ceilings": ceilings,
            "result": result.model_copy(update={"metrics": named}),
            "topology": record.topology.model_copy(update={"ranks": (first,)}),
            "plugin": record.plugin.model_copy(
                update={"strict": not record.plugin.closed_components}
            ),
        }
    )
    return judged_again(with_record(runs.toy, whole))


def _set_losses(data: dict[str, Any], first: float | None, last: float | None) -> None:
    data["loss_first"], data["loss_last"] = first, last


def _borrowed(runs: Runs) -> Files:
    """Return an INVALID run's record and losses over an honest run's evidence, plugin and draws."""
    honest = record_of(runs.honest)
    drawn = json.loads(honest.timing.repeats[0].model_dump_json())

    def edit(data: dict[str, Any]) -> None:
        losses = {name: data[name] for name in ("loss_first", "loss_last")}
        data.update(drawn | losses)

    def other_plugin(data: dict[str, Any]) -> None:
        data["plugin"]["files"] = json.loads(honest.plugin.model_dump_json())["files"]

    own = {n: c for n, c in runs.invalid.items() if not n.startswith(("evidence/", "plugin/"))}
    taken = (f"{_FOLDER}/", "plugin/")
    own |= {n: c for n, c in runs.honest.items() if n.startswith(taken) or n.endswith(".diff")}
    return timed_again(edited(own, other_plugin), edit)


def _make_older(data: dict[str, Any]) -> None:
    data["rules_version"] = data["audit"]["rules_version"] = "2"
    published = next(row for row in references.table().references if row.version == "0.1.0")
    data["llmb_version"], data["reference_digest"] = published.version, published.digest


def _stretched(timing: RepeatTiming, times: int) -> RepeatTiming:
    """Return ``timing`` with all its stamps so many times as far apart."""
    data = json.loads(timing.model_dump_json())
    begin = data["step_ns"][0]
    for name in ("fence_ns", "fence_worker_ns", "step_ns"):
        data[name] = [begin + times * (ns - begin) for ns in data[name]]
    for name in ("start_ns", "stop_ns"):
        data[name] = begin + times * (data[name] - begin)
    for name in ("paused_ns", "told_ns", "ended_ns") if data["tail"] else ():
        data["tail"][name] = begin + times * (data["tail"][name] - begin)
    return RepeatTiming.model_validate(data)


def _ceiling(record: RunRecord) -> Ceiling:
    """Return times of all products of the model in ``record``, none of which was ever made."""
    gemms = tuple(
        GemmCeiling(
            name=f"{k} to {n}",
            direction=direction,
            m=m,
            k=k,
            n=n,
            count=count,
            best_s=2 * m * k * n / _RATE,
        )
        for (direction, m, k, n), count in recompute_work._products(record).items()
    )
    assert record.ceilings is not None
    flops = sum(2 * one.m * one.k * one.n * one.count for one in gemms)
    rate = flops / sum(one.best_s * one.count for one in gemms)
    return record.ceilings.before.model_copy(
        update={
            "tokens": gemms[0].m,
            "gemms": gemms,
            "flops_per_second": rate,
            "squares": (),
            "best_product_flops_per_second": None,
            "sustained": None,
        }
    )


FORGED_EVIDENCE = (
    Forgery("toy_called_official", RECORD, (62, 64), toy_called_official, "evidence"),
    Forgery("losses_changed", RECORD, (62,), losses_changed, "evidence"),
    Forgery("called_older", RECORD, (62,), called_older, "evidence"),
    Forgery("fences_deleted", BUNDLE, (63,), fences_deleted, "evidence"),
    Forgery("fences_of_junk", BUNDLE, (63,), fences_of_junk, "evidence"),
    Forgery("fences_of_numbers", BUNDLE, (63,), fences_of_numbers, "evidence"),
    Forgery("fences_of_another", BUNDLE, (63,), fences_of_another, "evidence"),
    Forgery("evidence_of_honest_run", BUNDLE, (63,), evidence_of_honest_run, "evidence"),
    Forgery("evidence_renamed", BUNDLE, (63,), evidence_renamed, "evidence"),
    Forgery("header_deleted", BUNDLE, (63,), header_deleted, "evidence"),
    Forgery("tensor_of_no_parameter", BUNDLE, (63,), tensor_of_no_parameter, "evidence"),
    Forgery("segment_too_long", BUNDLE, (63,), segment_too_long, "evidence"),
)
