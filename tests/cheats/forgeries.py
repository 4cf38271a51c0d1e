"""Forged records and tampered bundles: what is done to the files of a finished run.

Each takes the files of an honest run, of another honest one, and of an invalid one, and returns
those of a forged bundle. Derived numbers are put right wherever a forger could.
"""

from __future__ import annotations

import json
from typing import Any

from llmb.records import arrays, audited
from llmb.records.finding import Status
from tests.cheats.corpus import BUNDLE, ENVIRONMENT, RECORD, TIMING
from tests.cheats.forged_evidence import FORGED_EVIDENCE
from tests.cheats.forged_figures import FORGED_FIGURES
from tests.cheats.forging import Files, Forgery, Runs, edited, judged_again, timed_again


def faster(runs: Runs) -> Files:
    """The headline is one percent higher."""

    def edit(data: dict[str, Any]) -> None:
        data["result"]["tokens_per_second"] *= 1.01

    return edited(runs.honest, edit)


def window_shortened(runs: Runs) -> Files:
    """The supervisor's stamps are compressed to half, and all derived numbers are adapted."""

    def edit(data: dict[str, Any]) -> None:
        begin = data["fence_ns"][0]
        data["fence_ns"] = [begin + (ns - begin) // 2 for ns in data["fence_ns"]]
        steps = data["fence_steps"]
        data["start_ns"] = data["fence_ns"][steps.index(data["warmup_steps"])]
        data["stop_ns"] = data["fence_ns"][-1]

    return timed_again(runs.honest, edit)


def every_stamp_invented(runs: Runs) -> Files:
    """All stamps, also the worker's, are compressed to half the time."""

    def edit(data: dict[str, Any]) -> None:
        begin = data["step_ns"][0]
        for name in ("fence_ns", "fence_worker_ns", "step_ns"):
            data[name] = [begin + (ns - begin) // 2 for ns in data[name]]
        for stop in data["stops"]:
            stop["at_ns"] = begin + (stop["at_ns"] - begin) // 2
        steps = data["fence_steps"]
        data["start_ns"] = data["fence_ns"][steps.index(data["warmup_steps"])]
        data["stop_ns"] = data["fence_ns"][-1]

    return judged_again(timed_again(runs.honest, edit))


def slower_repeat_dropped(runs: Runs) -> Files:
    """Of two repeats the slower one is left out of the record."""

    def edit(data: dict[str, Any]) -> None:
        del data["timing"]["repeats"][1]

    kept = {n: c for n, c in runs.honest.items() if "repeat-1" not in n}
    return edited(kept, edit)


def verdict_raised(runs: Runs) -> Files:
    """The verdict claims a repetition by a second party."""

    def edit(data: dict[str, Any]) -> None:
        data["audit"]["verdict"] = "REPRODUCED"

    return edited(runs.honest, edit)


def findings_passed(runs: Runs) -> Files:
    """Every finding of an INVALID run becomes a pass, and the verdict CONSISTENT."""

    def edit(data: dict[str, Any]) -> None:
        for finding in data["audit"]["findings"]:
            finding["status"] = Status.PASS.value
        data["audit"]["verdict"] = "CONSISTENT"

    return edited(runs.invalid, edit)


def judged_by_the_plugin(runs: Runs) -> Files:
    """The package's ``sitecustomize`` made every rule pass in the supervisor itself."""
    return runs.customised


def precision_raised(runs: Runs) -> Files:
    """The effective precision of a run in 8 bits is called BF16."""

    def edit(data: dict[str, Any]) -> None:
        data["precision"]["effective"] = "BF16"

    return edited(runs.invalid, edit)


def seed_changed(runs: Runs) -> Files:
    """The record claims a seed different from the seed of the weights and tokens."""

    def edit(data: dict[str, Any]) -> None:
        data["config"]["seed"] += 1

    return edited(runs.honest, edit)


def batch_doubled(runs: Runs) -> Files:
    """Twice the batch is claimed."""

    def edit(data: dict[str, Any]) -> None:
        data["config"]["batch_size"] *= 2
        data["workload"]["tokens_per_step"] *= 2
        for name in ("tokens_per_second", "tokens_per_second_per_device"):
            data["result"][name] *= 2

    return edited(runs.honest, edit)


def made_official(runs: Runs) -> Files:
    """A debug run is called an official one."""

    def edit(data: dict[str, Any]) -> None:
        data["class_" if "class_" in data else "class"] = "official"
        data["waivers"] = []

    return edited(runs.honest, edit)


def optimizer_evidence_edited(runs: Runs) -> Files:
    """Evidence of a different learning rate is overwritten."""
    name = "evidence/repeat-0/optimizer.json"
    data = json.loads(runs.honest[name])
    data["groups"][0]["lr"] = 0.0
    return runs.honest | {name: json.dumps(data, indent=1).encode()}


def gradients_of_the_reference(runs: Runs) -> Files:
    """The gradients of an INVALID run are made as near to the reference as its honest run's are."""
    import torch
    from safetensors.torch import load, save

    folder = "evidence/repeat-0"
    honest = arrays.read_reduced(runs.invalid[f"{folder}/{audited.HONEST}"])
    shown = arrays.read(runs.invalid[f"{folder}/{audited.GRADIENTS}"])
    told = arrays.read_reduced(runs.invalid[f"{folder}/{audited.REFERENCE}"])
    reference = arrays.resolved(told, shown)
    seen = load(runs.invalid[f"{folder}/{audited.GRADIENTS}"])
    plain = load(runs.invalid[f"{folder}/{audited.REFERENCE}"])
    plain.pop(arrays.SCALES)
    generator = torch.Generator().manual_seed(1)
    for name in seen.keys() & reference.keys():
        right, far = torch.tensor([*reference[name]]), honest.get(f"BF16/{name}")
        plain[name] = right
        if isinstance(far, arrays.Apart):
            noise = torch.randn(len(right), generator=generator)
            seen[name] = right + noise * (0.9 * far.distance / noise.norm())
        elif far is not None:
            seen[name] = torch.tensor([*far])
    rows = load(runs.invalid[f"{folder}/{audited.REPLAYED}"])
    for kind, of_steps in rows.items():
        if of_steps.dim() == 3:
            of_steps[..., 0] = 0.004 * of_steps[..., 1]
            rows[f"{kind}{audited.OF_ALL_STEPS}"][:, 1].clamp_(max=0.004)
    files = {audited.GRADIENTS: seen, audited.REFERENCE: plain, audited.REPLAYED: rows}
    forged = {f"{folder}/{name}": save(tensors) for name, tensors in files.items()}
    return judged_again(runs.invalid | forged)


def evidence_of_another(runs: Runs) -> Files:
    """An INVALID run has the gradient evidence of an honest run with a different seed."""
    names = ("gradients", "honest", "reference", "steps", "replay")
    folder = "evidence/repeat-0"
    taken = {f"{folder}/{n}.safetensors": runs.other[f"{folder}/{n}.safetensors"] for n in names}
    return runs.invalid | taken


def evidence_removed(runs: Runs) -> Files:
    """The evidence that convicts an INVALID run is left out, and the record says less."""
    name = "evidence/repeat-0/gradients.safetensors"
    judged = judged_again({n: c for n, c in runs.invalid.items() if n != name})

    def edit(data: dict[str, Any]) -> None:
        data["precision"]["how"] = "not observed"

    return edited(judged, edit)


def plugin_exchanged(runs: Runs) -> Files:
    """A plugin file is exchanged for a harmless one."""
    (name,) = (n for n in runs.invalid if n.startswith("plugin/") and n.endswith("__init__.py"))
    return runs.invalid | {name: b'"""Nothing is changed."""\n'}


def plugin_left_out(runs: Runs) -> Files:
    """A plugin file is left out."""
    (name,) = (n for n in runs.invalid if n.startswith("plugin/") and n.endswith("kit.py"))
    return {n: c for n, c in runs.invalid.items() if n != name}


def file_added(runs: Runs) -> Files:
    """A file no run leaves is added."""
    return runs.honest | {"evidence/repeat-0/more.pkl": b"\x80\x04."}


def record_of_another(runs: Runs) -> Files:
    """The record, with its copies, belongs to a different run."""
    names = ("record.json", "audit.json", "system.json")
    return runs.honest | {name: runs.other[name] for name in names}


def readable_diff_edited(runs: Runs) -> Files:
    """The readable diff of the model hides the plugin's changes."""
    return runs.invalid | {"settings.diff": b"", "model.diff": b"# nothing\n"}


def processor_upgraded(runs: Runs) -> Files:
    """The record names a different processor."""

    def edit(data: dict[str, Any]) -> None:
        data["system"]["cpu"]["model"] = "Colossus 9000"

    return edited(runs.honest, edit)


_BY_REPRODUCTION = "nothing inside a bundle can contradict it: only a reproduction can"

FORGERIES = (
    Forgery("faster", RECORD, (62,), faster, "recomputation"),
    Forgery("window_shortened", RECORD, (62,), window_shortened, "audit"),
    Forgery("every_stamp_invented", RECORD, (62,), every_stamp_invented, None, _BY_REPRODUCTION),
    Forgery("slower_repeat_dropped", TIMING, (9,), slower_repeat_dropped, "recomputation"),
    Forgery("verdict_raised", RECORD, (62,), verdict_raised, "verdict"),
    Forgery("findings_passed", RECORD, (62,), findings_passed, "audit"),
    Forgery("judged_by_the_plugin", RECORD, (61, 62), judged_by_the_plugin, "audit"),
    Forgery("precision_raised", RECORD, (46, 62), precision_raised, "precision"),
    Forgery("seed_changed", RECORD, (62,), seed_changed, "audit"),
    Forgery("batch_doubled", RECORD, (62, 64), batch_doubled, "recomputation"),
    Forgery("made_official", RECORD, (62,), made_official, "recomputation"),
    Forgery("optimizer_evidence_edited", BUNDLE, (63,), optimizer_evidence_edited, "audit"),
    Forgery(
        "gradients_of_the_reference",
        RECORD,
        (62, 63),
        gradients_of_the_reference,
        None,
        _BY_REPRODUCTION,
    ),
    Forgery("evidence_of_another", BUNDLE, (63,), evidence_of_another, "audit"),
    Forgery("evidence_removed", BUNDLE, (63,), evidence_removed, "evidence"),
    Forgery("plugin_exchanged", BUNDLE, (63,), plugin_exchanged, "plugin"),
    Forgery("plugin_left_out", BUNDLE, (63,), plugin_left_out, "plugin"),
    Forgery("file_added", BUNDLE, (63,), file_added, "files"),
    Forgery("record_of_another", BUNDLE, (63,), record_of_another, "audit"),
    Forgery("readable_diff_edited", BUNDLE, (63,), readable_diff_edited, "diff"),
    Forgery("processor_upgraded", ENVIRONMENT, (64,), processor_upgraded, None, _BY_REPRODUCTION),
    *FORGED_EVIDENCE,
    *FORGED_FIGURES,
)
