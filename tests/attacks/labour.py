"""Few bytes that ask for much work."""

from __future__ import annotations

import json
from typing import Any

from tests.attacks.evidence import arrays, evidence, tensors
from tests.attacks.kinds import (
    RECORD,
    Files,
    edited,
    forged,
)


def arrays_of(**values: int) -> bytes:
    """Return a safetensors file of arrays of so many zeros each."""
    header, place = {}, 0
    for name, count in values.items():
        offsets = [place, place + 4 * count]
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": offsets}
        place += 4 * count
    return tensors(json.dumps(header).encode(), bytes(place))


def audited(name: str, reason: str, indices: list[int], segments: list[dict[str, Any]]) -> None:
    """Add an attack on audited steps, with the arrays that make them be looked at."""
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
    forged(name, reason, lambda files: {**named, f"{where}steps.json": json.dumps(steps).encode()})


def modules(count: int) -> bytes:
    """Return a module tree in which every other module was replaced."""
    before = {f"layers.{n}": "torch.nn.Linear()" for n in range(count)}
    after = {name: "Other()" if n % 2 else one for n, (name, one) in enumerate(before.items())}
    return json.dumps({"before": before, "after": after}).encode()


def replaced(files: Files) -> Files:
    """Return a record of many declared patches, and evidence of as many replacements."""
    record = json.loads(files[RECORD])
    patch = {"target": "*a*a*a*a*a*a*b", "reason": "speed"}
    record["plugin"]["declared_patches"] = [patch] * 20_000
    one = {"name": "a" * 30, "kind": "python", "origin": "plugin"}
    seen = {"callables": 1, "operators": 1, "replaced": [one] * 20_000, "device_kernels": 0}
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
    """Claim a fence and a look at every one of 20,000 steps."""
    steps = list(range(20_000))
    stamps = [step * 1000 for step in steps]
    more = {"fence_steps": steps, "fence_ns": stamps, "fence_worker_ns": stamps, "step_ns": stamps}
    more |= {"warmup_steps": 1, "timed_steps": 19_998, "audited_steps": steps}
    more |= {"start_ns": 1000, "stop_ns": 19_999_000}
    data["timing"]["repeats"][0].update(more)


SEGMENT = {"name": "a", "dtype": "float32", "gradients": 10**18, "states": 10**18}
audited("segment of 10^18 elements", "audit: ", [1], [SEGMENT])
audited("segment of fewer than no elements", "audit: ", [1], [{**SEGMENT, "gradients": -1}])
audited("one step audited 5,000 times", "audited twice", [1] * 5000, [])
edited("window of 10^18 steps", "recomputation: ", long_window)
edited("10^15 sequences of their own lengths", "recomputation: ", long_batch)
edited("20,000 fences and looks", "recomputation: ", many_fences)
evidence("60,000 modules", "no diff of them", "model.json", modules(60_000))
forged("20,000 replacements and patches", "audit: ", replaced)
arrays("array of 5 million numbers", arrays_of(a=5 * 2**20))
arrays("20,000 arrays", arrays_of(**{f"branches/{n}": 1 for n in range(20_000)}))
