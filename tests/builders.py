"""Valid, self-consistent runs made from nothing, for tests: no torch, no device, no worker.

Derived numbers come from the first path (``llmb.measure``), so every test that recomputes them
also holds the two paths against each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from llmb import __version__
from llmb.audit import judgement, rules
from llmb.audit.bench import Facts, sharp_of
from llmb.config import BF16, Mode, RunConfig
from llmb.measure import metrics, statistics
from llmb.records import ceiling, draws, evidence, run_record
from llmb.records.canonical import canonical_bytes, pretty_bytes
from llmb.records.finding import Audit
from llmb.records.run_record import FileDigest, RepeatTiming, RunRecord
from llmb.records.submission import Submission
from llmb.records.system import Cpu, Device, HostLoad, HostMemory, SystemDescription
from llmb.reference import pins
from llmb.reference.shapes import LlamaShape
from llmb.submission import manifest
from llmb.workloads import WORKLOADS, arithmetic
from tests import builders_evidence

PLUGIN_FILES = {"__init__.py": b'"""A plugin."""\n', "kernels/fused.py": b"FAST = True\n"}
LLAMA_SHAPES: dict[str, int | float | None] = {
    "vocab_size": 32000,
    "hidden_size": 3200,
    "intermediate_size": 6400,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "sequence_length": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "padding_idx": 0,
}
TOKENS_PER_STEP = 8 * 256
FLOPS_PER_TOKEN = 8_105_164_800
PARAMETERS = 1_433_680_000
_PARAMETERS_BY_NAME = 111


def repeat_timing(number: int = 0, step_clock: str = "host", timed_steps: int = 50) -> RepeatTiming:
    """Return stamps of one worker: every repeat and every block has a speed of its own."""
    warmup, steps = 2, 2 + timed_steps
    step_ns, now = [], 1_000_000_000 * (number + 1)
    for step in range(steps):
        now += 100_000_000 + 3_000_000 * number + 1_000_003 * ((step * 7) % 11)
        step_ns.append(now)
    # The fence after k steps is stamped when step k - 1 is done, a little after the step itself.
    fence_steps = [*range(warmup, steps, draws.FENCE_EVERY), steps]
    fence_ns = [step_ns[k - 1] + 50_000 for k in fence_steps]
    timing = RepeatTiming(
        warmup_steps=warmup,
        timed_steps=timed_steps,
        start_ns=fence_ns[0],
        stop_ns=fence_ns[-1],
        fence_ns=tuple(fence_ns),
        fence_worker_ns=tuple(ns - 20_000 for ns in fence_ns),
        fence_steps=tuple(fence_steps),
        step_ns=tuple(step_ns),
        step_clock=step_clock,
        starved_steps=0,
        loss_first=10.9375 + number / 16,
        loss_last=10.875 + number / 16,
        peak_memory_bytes=20_000_000_000 + number,
        energy_start_j=1000.5,
        energy_stop_j=3500.75 + number,
        cpu_s=5.25,
    )
    bits = builders_evidence.fence_bits(timing, _PARAMETERS_BY_NAME)
    return timing.model_copy(update={"fence_bits": bits})


def make_record(
    repeats: int = 3,
    step_clock: str = "host",
    timed_steps: int = 50,
    waivers: tuple[str, ...] = (),
    plugin_files: Mapping[str, bytes] = PLUGIN_FILES,
    run_id: str = "0123456789abcdef0123456789abcdef",
    plugin: str = "fast",
    program: str | None = None,
) -> RunRecord:
    """Return an honest record: official by default, UNVERIFIED as every run of this version."""
    every = tuple(repeat_timing(n, step_clock, timed_steps) for n in range(repeats))
    rates = [statistics.tokens_per_second(one, TOKENS_PER_STEP) for one in every]
    headline = statistics.median_index(rates)
    timing = run_record.Timing(
        clock="CLOCK_MONOTONIC_RAW",
        headline_repeat=headline,
        repeats=every,
        **every[headline].model_dump(),
    )
    config = RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin=plugin,
        plugin_options={"compile": "max autotune", "fused": True, "level": 3},
        device="fast:0",
        precision=BF16,
        batch_size=8,
        seed=7,
        warmup_steps=2,
        timed_steps=timed_steps,
        repeats=repeats,
    )
    draft = RunRecord(
        run_id=run_id,
        created_utc="2026-11-21T12:00:00Z",
        llmb_version=__version__,
        rules_version=rules.RULES_VERSION,
        reference_digest=pins.reference_digest(pins.pinned_digests()),
        class_="debug" if waivers else "official",
        waivers=waivers,
        config=config,
        workload=run_record.WorkloadFacts(
            name="llama-1.4b",
            mode="train",
            parameters=PARAMETERS,
            flops_per_token=FLOPS_PER_TOKEN,
            tokens_per_step=TOKENS_PER_STEP,
            shapes=LLAMA_SHAPES,
        ),
        plugin=run_record.PluginFacts(
            name=plugin,
            distribution="llmb-fast",
            version="1.0",
            options=dict(config.plugin_options),
            files=digests(plugin_files),
            strict=not waivers,
        ),
        topology=_topology(config, timing),
        system=_system(),
        precision=run_record.PrecisionFacts(declared="BF16", effective=None, how="not observed"),
        timing=timing,
        ceilings=ceiling.Ceilings(before=_ceiling(1.0), after=_ceiling(1.125)),
        batch_size_search=_search(),
        result=_result(config, timing, rates[headline]),
        warnings=("the window is shorter than 30 s",),
        audit=rules.complete(()),
        diff=run_record.Diff(
            model=run_record.ModelDiff(
                modules_replaced=(), modules_added=(), modules_removed=(), parameters_repacked=()
            ),
            settings=(),
            sources=None,
            sources_base="no release to compare with",
        ),
    )
    return draft.model_copy(update={"audit": _audit(draft, plugin_files, program)})


def _topology(config: RunConfig, timing: run_record.Timing) -> run_record.Topology:
    rank = run_record.Rank(
        rank=0,
        host="0123456789ab",
        device=config.device,
        peak_memory_bytes=timing.peak_memory_bytes,
        fence_ns=timing.fence_ns,
    )
    return run_record.Topology(
        nodes=1, devices_per_node=1, world_size=1, parallelism=config.parallelism, ranks=(rank,)
    )


def _system() -> SystemDescription:
    load = HostLoad(load_1min=0.5, steal_s=0.0, throttled_periods=None, frequency_mhz=2400.0)
    return SystemDescription(
        cpu=Cpu(
            model="CPU",
            architecture="x86_64",
            physical_cores=4,
            logical_cores=8,
            usable_cores=8,
            max_frequency_mhz=3000.0,
        ),
        memory=HostMemory(total_bytes=2**36, available_bytes=2**35),
        devices=(Device(name="fast:0", description="Fast [1]", memory_bytes=2**35),),
        os="Linux",
        python="3.11.7",
        torch="2.13.0",
        drivers={"fast": "1.2"},
        env={"OMP_NUM_THREADS": "8"},
        load_before=load,
        load_after=load,
    )


def _ceiling(slower: float) -> ceiling.Ceiling:
    seconds = {"forward": 1e-3, "grad_input": 2e-3, "grad_weight": 3e-3}
    gemms = tuple(
        ceiling.GemmCeiling(
            name=gemm.name,
            direction=direction,
            m=TOKENS_PER_STEP,
            k=gemm.k,
            n=gemm.n,
            count=gemm.count,
            best_s=slower * best_s,
        )
        for gemm in arithmetic.gemms(LlamaShape())
        for direction, best_s in seconds.items()
    )
    flops = sum(2 * g.m * g.k * g.n * g.count for g in gemms)
    square = ceiling.SquareProduct(layout="plain", size=8192, at_once=1, best_s=slower * 2e-3)
    return ceiling.Ceiling(
        precision="BF16",
        tokens=TOKENS_PER_STEP,
        gemms=gemms,
        flops_per_second=flops / sum(g.best_s * g.count for g in gemms),
        memory_bytes_per_second=1e11,
        squares=(square,),
        best_product_flops_per_second=2 * 8192**3 / square.best_s,
    )


def _search() -> run_record.SearchLog:
    trials = [(4, "measured", 9000.0), (8, "measured", 9500.5), (16, "out_of_memory", None)]
    return run_record.SearchLog(
        timed_steps=3,
        trials=tuple(
            run_record.BatchTrial(
                batch_size=size, status=status, tokens_per_second=rate, peak_memory_bytes=None
            )
            for size, status, rate in trials
        ),
        best=8,
    )


def _result(config: RunConfig, timing: run_record.Timing, rate: float) -> run_record.Result:
    workload = WORKLOADS[config.workload]
    achieved, joules = rate * FLOPS_PER_TOKEN, timing.energy_stop_j - timing.energy_start_j
    return run_record.Result(
        tokens_per_second=rate,
        ci95=_interval(timing.repeats),
        tokens_per_second_per_device=rate,
        step_time_s=statistics.step_time(timing),
        mfu=run_record.Mfu(value=achieved / 4e14, peak_flops=4e14, peak_source="datasheet"),
        fraction_of_ceiling=achieved / _ceiling(1.0).flops_per_second,
        peak_memory_bytes=timing.peak_memory_bytes,
        energy=run_record.Energy(
            joules=joules,
            tokens_per_joule=TOKENS_PER_STEP * timing.timed_steps / joules,
            source="counter",
            scope="device",
        ),
        loss_first=timing.loss_first,
        loss_last=timing.loss_last,
        metrics=metrics.metrics_of(config, workload, timing, TOKENS_PER_STEP, 4e14),
    )


@cache
def _interval(repeats: tuple[RepeatTiming, ...]) -> tuple[float, float] | None:
    """Return the interval of these stamps, which takes as long as the rest of a record."""
    return statistics.confidence_interval(repeats, TOKENS_PER_STEP)


def optimizer_evidence(timing: RepeatTiming) -> evidence.OptimizerEvidence:
    """Return what an honest worker says of its optimizer."""
    steps = timing.warmup_steps + timing.timed_steps
    group = evidence.ParameterGroup(
        parameters=111,
        lr=1e-5,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        amsgrad=False,
        maximize=False,
        foreach=None,
        fused=True,
        capturable=False,
    )
    return evidence.OptimizerEvidence(
        class_name="torch.optim.adamw.AdamW",
        class_is_torchs=True,
        step_is_torchs=True,
        instance_overrides=(),
        step_hooks=0,
        trainable=111,
        missing=(),
        repeated=(),
        groups=(group,),
        steps_expected=steps,
        steps_min=steps,
        steps_max=steps,
    )


def _audit(draft: RunRecord, plugin: Mapping[str, bytes], program: str | None) -> Audit:
    """Return what a supervisor would say of ``draft`` and its evidence."""
    pinned = pins.pinned_digests()
    assert draft.result.mfu is not None
    facts = Facts(
        precision=draft.config.precision,
        repeats=draft.timing.repeats,
        shown=draft.plugin.files,
        reference=pinned,
        pinned=pinned,
        workload=draft.workload,
        parallelism=draft.topology.parallelism,
        ceilings=draft.ceilings,
        peak_flops=draft.result.mfu.peak_flops,
        system=draft.system,
        patches=draft.plugin.declared_patches,
        helpers=draft.plugin.declared_helpers,
        variables=draft.plugin.environment,
        is_debug=draft.class_ == "debug",
        sharp_start=sharp_of(draft.config, draft.workload),
    )
    return judgement.judge(run_files(draft, plugin, program).get, facts).audit


def digests(files: Mapping[str, bytes]) -> tuple[FileDigest, ...]:
    """Return the digest of each of ``files``, sorted by path."""
    return tuple(
        FileDigest(path=path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        for path, data in sorted(files.items())
    )


def run_files(
    record: RunRecord,
    plugin: Mapping[str, bytes] = PLUGIN_FILES,
    program: str | None = None,
) -> dict[str, bytes]:
    """Return the files of the run directory that ``record`` belongs to."""
    files = {
        "record.json": pretty_bytes(record),
        "audit.json": pretty_bytes(record.audit),
        "system.json": pretty_bytes(record.system),
        "model.diff": b"",
        "settings.diff": b"",
        "sources.diff": b"# llmb against no release to compare with\n",
    }
    files |= {f"plugin/{path}": data for path, data in plugin.items()}
    seen = {
        evidence.SETTINGS: evidence.SettingsEvidence(before={}, after={}),
        evidence.PLUGIN: evidence.PluginEvidence(
            files=record.plugin.files, closed_components=(), declared_patches=()
        ),
    }
    for n, timing in enumerate(record.timing.repeats):
        every = {**seen, evidence.OPTIMIZER: optimizer_evidence(timing)}
        files |= {f"evidence/repeat-{n}/{name}": pretty_bytes(v) for name, v in every.items()}
        more = builders_evidence.evidence_of(record, n, census=program is None)
        files |= {evidence.path(n, name): data for name, data in more.items()}
        if program is not None:
            files[evidence.path(n, evidence.PROGRAM)] = program.encode()
    return files


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write ``files`` below ``folder`` and return it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


#: Whose the bundles of tests are.
WHOSE = Submission(submitter="acme", system="box")


def with_manifest(files: Mapping[str, bytes], whose: Submission = WHOSE) -> dict[str, bytes]:
    """Return ``files`` and their manifest."""
    return manifest.with_manifest(files, whose)


def older_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return ``files`` and their manifest as llmb 0.1.0 wrote it: nobody is named."""
    said = json.loads(manifest.manifest_bytes(files, WHOSE))
    del said["submission"]
    older = canonical_bytes({**said, "schema": "llmb.bundle/1"})
    return {**files, "MANIFEST.json": older}


def bundle_files(record: RunRecord) -> dict[str, bytes]:
    """Return the files of an honest bundle of ``record``."""
    return with_manifest(run_files(record))


def seed_commitment(seed: int = 7, salt: str = "0123456789abcdef" * 2) -> dict[str, Any]:
    """Return the document of a third party that committed to ``seed``, by default the record's."""
    digest = hashlib.sha256(f"llmb-seed:{seed}:{salt}".encode()).hexdigest()
    return {
        "schema": "llmb.seed-commitment/1",
        "commitment": digest,
        "seed": seed,
        "salt": salt,
        "committed_by": "A [conference]",
        "published_at": "https://seeds.example, 2026-11-02",
    }


def edited(record: RunRecord, edit: Callable[[dict[str, Any]], object]) -> RunRecord:
    """Return ``record`` after ``edit`` has changed its JSON data."""
    data = deepcopy(json.loads(pretty_bytes(record)))
    edit(data)
    return RunRecord.model_validate(data)
