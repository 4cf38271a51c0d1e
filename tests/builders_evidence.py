"""What a worker leaves of its audit, made from nothing: whole, and of no step that was looked at.

No honest run and no reference stand beside it, so that a run of it is UNVERIFIED.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from llmb.config import AuditMode, Mode
from llmb.records import audited, evidence
from llmb.records.canonical import pretty_bytes
from llmb.records.draws import Draws
from llmb.records.run_record import RepeatTiming, RunRecord
from llmb.records.seeds import token_seed
from llmb.submission.evidence_model import ExpectedModel

_SAMPLES = 16


def tensors(shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, bytes] = {}) -> bytes:
    """Return a safetensors file of float32 ``shapes``: zeros where no bytes are given."""
    header, data = dict[str, object](), b""
    for name, shape in shapes.items():
        own = values.get(name, bytes(4 * math.prod(shape)))
        offsets = [len(data), len(data) + len(own)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += own
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def samples(timing: RepeatTiming, width: int) -> list[tuple[float, bytes]]:
    """Return loss and sampled parameters at each fence: numbers that nothing else has."""
    last = len(timing.fence_steps) - 1
    losses = [timing.loss_first or 0.0, *[11.0] * (last - 1), timing.loss_last or 0.0]
    names = (f"fence {n} of {timing.start_ns}" for n in range(last + 1))
    rows = [struct.pack(f"<{width}f", *_noise(name, width)) for name in names]
    return list(zip(losses, rows, strict=True))


@lru_cache
def _noise(name: str, count: int) -> Sequence[float]:
    """Return numbers between 0 and 1 that follow from ``name`` and cannot be compressed."""
    draw = random.Random(name)
    return [draw.random() for _ in range(count)]


def fence_bits(timing: RepeatTiming, parameters: int) -> tuple[str, ...]:
    """Return the digests that a worker tells at its fences."""
    every = samples(timing, _SAMPLES * parameters)
    return tuple(hashlib.sha256(struct.pack("<f", loss) + row).hexdigest() for loss, row in every)


def evidence_of(record: RunRecord, repeat: int, *, census: bool = True) -> dict[str, bytes]:
    """Return the evidence of one repeat, by file name; without ``census`` no operator was seen."""
    model, timing = ExpectedModel.of(record), record.timing.repeats[repeat]
    files = dict(_of_model(model.family, tuple(sorted(model.sizes.items())), model.dtype))
    every = samples(timing, _SAMPLES * len(model.parameters))
    files[evidence.FENCES] = tensors(
        {"loss": (len(every),), "parameters": (len(every), _SAMPLES * len(model.parameters))},
        {
            "loss": struct.pack(f"<{len(every)}f", *(loss for loss, _ in every)),
            "parameters": b"".join(row for _, row in every),
        },
    )
    files[evidence.REPEAT] = pretty_bytes(
        evidence.RepeatEvidence(
            run_id=record.run_id,
            repeat=repeat,
            seed=record.config.seed,
            nonce=timing.nonce,
            warmup_steps=timing.warmup_steps,
            timed_steps=timing.timed_steps,
            plugin=record.plugin.name,
            plugin_sha256=evidence.plugin_digest(record.plugin.files),
        )
    )
    if record.config.audit is not AuditMode.OFF and record.config.mode is Mode.TRAIN:
        files |= _of_audit(record, repeat, model, census=census)
    return files


def _of_audit(
    record: RunRecord, repeat: int, model: ExpectedModel, *, census: bool
) -> dict[str, bytes]:
    timing = record.timing.repeats[repeat]
    last = timing.warmup_steps + timing.timed_steps
    drawn = timing.nonce and Draws(timing.nonce, record.workload.optimizer, ledger=True)
    probed = audited.ProbedEvidence(
        seed=drawn.audit(last) if drawn else int(record.run_id, 16) % 2**62 + repeat,
        last_step=last,
        token_seed=token_seed(record.config.seed, repeat, last, timing.nonce),
        passes=("live",),
        missing=(),
    )
    product = evidence.OperatorTypes(
        kind="product",
        operator="aten::mm",
        operands=("bfloat16",),
        results=("bfloat16",),
        calls=255,
    )
    seen = {
        audited.PROBED: probed,
        audited.STEPS: audited.StepsEvidence(steps=(), pause_ns=0, longest_pause_ns=0),
        evidence.TYPES: evidence.TypesEvidence(
            executed=(product,) * census, compiled=(), compiled_frames=0, unread_frames=0
        ),
        evidence.NAMESPACE: evidence.NamespaceEvidence(
            callables=1, operators=1, replaced=(), device_kernels=0, libraries=()
        ),
        evidence.SURROUNDINGS: evidence.SurroundingsEvidence(
            found=(),
            preloaded=(),
            frozen_objects=(0, 0),
            collecting=(True, True),
            native_threads=None,
        ),
    }
    files = {name: pretty_bytes(value) for name, value in seen.items()}
    sizes = {name: model.sketch(name) for name in model.parameters}
    counts = tuple((name, size[1]) for name, size in sizes.items() if size is not None)
    gradients = _gradients(counts, f"repeat {repeat} of {record.run_id}")
    return files | {audited.GRADIENTS: gradients, audited.STEP_VALUES: tensors({})}


@lru_cache
def _gradients(counts: tuple[tuple[str, int], ...], run: str) -> bytes:
    """Return so many numbers of each parameter, which cannot be compressed, and a loss.

    Those of the last parameter are of this ``run`` alone.
    """
    noise = {f"live/{n}": struct.pack(f"<{count}f", *_noise(n, count)) for n, count in counts}
    last, count = counts[-1]
    noise[f"live/{last}"] = struct.pack(f"<{count}f", *_noise(run, count))
    return tensors({f"live/{n}": (count,) for n, count in counts} | {"live/loss": (1,)}, noise)


@lru_cache
def _of_model(family: str, sizes: tuple[tuple[str, int], ...], dtype: str) -> Mapping[str, bytes]:
    from llmb.submission.official import parameters_of

    parameters = parameters_of(family, dict(sizes))
    digests = tuple(
        evidence.ParameterDigest(
            name=name,
            shape=shape,
            dtype=dtype,
            requires_grad=True,
            sha256=hashlib.sha256(name.encode()).hexdigest(),
        )
        for name, shape in parameters.items()
    )
    elements = sum(map(math.prod, parameters.values()))
    tree = {"(model)": "Model()"}
    for name, shape in parameters.items():
        module, _, own = name.rpartition(".")
        line = f"{own}{list(shape)}:{dtype}"
        tree[module] = f"{tree[module]}, {line}" if module in tree else f"Module() {line}"
    seen = {
        evidence.MODEL: evidence.ModelEvidence(before=tree, after=tree),
        evidence.WEIGHTS: evidence.WeightsEvidence(
            pristine=digests,
            processed=digests,
            stored_elements=elements,
            canonical_elements=elements,
        ),
    }
    return {name: pretty_bytes(value) for name, value in seen.items()}
