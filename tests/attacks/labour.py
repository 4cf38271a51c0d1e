"""Few bytes that ask for much work: ``MANY`` of something, or more than a limit lets pass."""

from __future__ import annotations

import json
from typing import Any

from llmb.records import arrays
from tests.attacks.evidence import in_every_file, tensors
from tests.attacks.kinds import (
    RECORD,
    Files,
    edited,
    forged,
)

#: Above every limit on what may be counted, and so little that it is made in a moment.
MANY = 20_000


def arrays_of(**values: int) -> bytes:
    """Return a safetensors file of arrays of so many zeros each."""
    header, place = {}, 0
    for name, count in values.items():
        offsets = [place, place + 4 * count]
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": offsets}
        place += 4 * count
    return tensors(json.dumps(header).encode(), bytes(place))


def audited(indices: list[int], segments: list[dict[str, Any]]) -> Files:
    """Return evidence of audited steps, with the arrays that make them be looked at."""
    kinds = [
        f"{when}/{kind}" for when in ("before", "after") for kind in ("value", "mean", "square")
    ]
    content = arrays_of(**{f"1/{part}": 3 for part in (*kinds, "replay/gradient", "gradient")})
    fixed = {"token_seed": 1, "seed": 1, "weights_kept": True, "steps_before": 1.0}
    fixed |= {"foreach": None, "fused": None, "capturable": False, "segments": segments}
    steps = {
        "steps": [{"index": i, **fixed} for i in indices],
        "pause_ns": 0,
        "longest_pause_ns": 0,
    }
    where = "evidence/repeat-0/"
    named = {f"{where}{file}.safetensors": content for file in ("steps", "replay", "honest")}
    return {**named, f"{where}steps.json": json.dumps(steps).encode()}


def modules(files: Files) -> Files:
    """Return evidence of a module tree in which every other module was replaced."""
    before = {f"layers.{n}": "torch.nn.Linear()" for n in range(3 * MANY)}
    after = {name: "Other()" if n % 2 else one for n, (name, one) in enumerate(before.items())}
    tree = json.dumps({"before": before, "after": after}).encode()
    return {"evidence/repeat-0/model.json": tree}


def replaced(files: Files) -> Files:
    """Return a record of many declared patches, and evidence of as many replacements."""
    record = json.loads(files[RECORD])
    patch = {"target": "*a*a*a*a*a*a*b", "reason": "speed"}
    record["plugin"]["declared_patches"] = [patch] * MANY
    one = {"name": "a" * 30, "kind": "callable", "origin": "plugin"}
    seen = {"callables": 1, "operators": 1, "replaced": [one] * MANY, "device_kernels": 0}
    return {
        RECORD: json.dumps(record).encode(),
        "evidence/repeat-0/namespace.json": json.dumps({**seen, "libraries": []}).encode(),
    }


def long_window(data: dict[str, Any]) -> None:
    """Claim a window of 10^18 steps."""
    for timing in (data["timing"], *data["timing"]["repeats"]):
        timing.update(timed_steps=10**18)


def long_batch(data: dict[str, Any]) -> None:
    """Claim sequences of their own lengths, 10^15 a step."""
    data["config"].update(dynamic=True, batch_size=10**15)
    data["workload"].update(tokens_per_step=256 * 10**15)
    for timing in (data["timing"], *data["timing"]["repeats"]):
        timing.update(step_tokens=[10] * 52)


def many_fences(data: dict[str, Any]) -> None:
    """Claim a fence and a look at every one of many steps."""
    steps = list(range(MANY))
    stamps = [step * 1000 for step in steps]
    more = {"fence_steps": steps, "fence_ns": stamps, "fence_worker_ns": stamps, "step_ns": stamps}
    more |= {"warmup_steps": 1, "timed_steps": MANY - 2, "audited_steps": steps}
    more |= {"start_ns": 1000, "stop_ns": (MANY - 1) * 1000}
    data["timing"]["repeats"][0].update(more)


SEGMENT = {"name": "a", "dtype": "float32", "gradients": 10**18, "states": 10**18}
FEWER_THAN_NONE = {**SEGMENT, "gradients": -1}
forged("segment of 10^18 elements", "audit: ", lambda files: audited([1], [SEGMENT]))
forged(
    "segment of fewer than no elements", "audit: ", lambda files: audited([1], [FEWER_THAN_NONE])
)
forged("one step audited many times", "audited twice", lambda files: audited([1] * (MANY // 4), []))
edited("window of 10^18 steps", "recomputation: ", long_window)
edited("10^15 sequences of their own lengths", "recomputation: ", long_batch)
edited("many fences and looks", "recomputation: ", many_fences)
forged("many modules", "no diff of them", modules)
forged("many replacements and patches", r"\d+ replacements and \d+ declarations", replaced)
forged(
    "array of more numbers than a sample has",
    "audit: ",
    lambda files: in_every_file(arrays_of(a=arrays.MAX_ELEMENTS + 1)),
)
forged(
    "many arrays",
    "audit: ",
    lambda files: in_every_file(arrays_of(**{f"branches/{n}": 1 for n in range(MANY)})),
)
