"""Assembles a finished run: checks and judges evidence, writes diffs and record."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from llmb import __version__, workloads
from llmb.audit.bench import Facts, UnreadableError, sharp_of
from llmb.audit.judgement import Judgement, judge
from llmb.audit.time import LEAST_WINDOW_S
from llmb.config import (
    MOST_TIMED_STEPS,
    MOST_WARMUP_STEPS,
    AuditMode,
    Frozen,
    Mode,
    RunConfig,
    is_cpu,
)
from llmb.endings import Interrupted
from llmb.errors import LlmbError, RunFailedError
from llmb.measure import host, metrics, summary
from llmb.plugin import discovery
from llmb.plugin.builtin.host import usable_cores
from llmb.records import audited, diff, evidence, run_directory, sources
from llmb.records.canonical import pretty_bytes
from llmb.records.ceiling import Ceilings
from llmb.records.finding import RULES_VERSION
from llmb.records.interconnect import Interconnect
from llmb.records.printable import plain_text
from llmb.records.reproduction import Original, ReproductionOf
from llmb.records.run_directory import RunDirectory
from llmb.records.run_record import (
    Diff,
    Duration,
    FileDigest,
    Interruption,
    PluginFacts,
    PrecisionFacts,
    Rank,
    RepeatTiming,
    Result,
    RunRecord,
    SearchLog,
    Timing,
    Topology,
    WorkloadFacts,
)
from llmb.records.seed_commitment import SeedCommitment
from llmb.records.system import HostLoad, SystemDescription
from llmb.reference import pins
from llmb.supervision.auditing import Examined
from llmb.supervision.interconnect import KINDS
from llmb.supervision.lacking import consequences
from llmb.supervision.negotiation import Negotiated
from llmb.supervision.stream import Streamed
from llmb.workloads import Workload
from llmb.workloads.arithmetic import flops_of, parameter_count

E = TypeVar("E", bound=Frozen)
NO_CEILING = "the device's ceiling was not measured: log.txt may say why"
_NO_LINKS = "the links between the ranks were not measured in full: log.txt may say why"


@dataclass(frozen=True)
class Repeat:
    """The timed window of one fresh worker, with the evidence of the audit's processes."""

    streamed: Streamed
    examined: Examined
    #: Notes of the supervisor for the reader of the record, for example on missing time stamps.
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """Every evidence file of the repeat: file name -> sha256 announced by the writer."""
        return {**self.streamed.evidence, **self.examined.evidence}

    @property
    def ended(self) -> LlmbError | KeyboardInterrupt | None:
        """The error that ended the run in this repeat after a complete window; None without one."""
        return self.examined.ended


@dataclass(frozen=True)
class Raw:
    """Everything a run has collected before judging, such as repeats and ceilings."""

    run_id: str
    created: datetime
    config: RunConfig
    workload: Workload
    negotiated: Negotiated
    search: SearchLog | None
    ceilings: Ceilings | None
    repeats: tuple[Repeat, ...]
    load_before: HostLoad
    load_after: HostLoad
    #: Seconds from the start of the command to the judging.
    real_s: float
    #: Kind of process -> "forked", or "spawned" with the reason.
    processes: dict[str, str]
    #: None in a run of one rank.
    interconnect: Interconnect | None = None
    seed_commitment: SeedCommitment | None = None
    original: Original | None = None
    #: Further notes for the reader of the record.
    notes: tuple[str, ...] = ()
    #: The event that ended the run early; None for a complete run.
    interruption: Interruption | None = None


def assemble(raw: Raw, directory: RunDirectory) -> RunRecord:
    """Judge the evidence, write every file of the run directory, and return its record.

    Raises:
        RunFailedError: evidence is missing, or differs from the announced digest.
    """
    _check_evidence(raw, directory)
    workload = _facts(raw)
    timings = [repeat.streamed.timing for repeat in raw.repeats]
    timing = summary.timing_of(timings, workload.tokens_per_step)
    plugin = _plugin_facts(raw, directory)
    _name_evidence(raw, directory, plugin)
    offer, terms = raw.negotiated.offer, raw.negotiated.terms
    system = host.describe(
        devices=offer.devices,
        torch_version=offer.torch_version,
        drivers=terms.facts,
        plugin_environment=terms.environment,
        before=raw.load_before,
        after=raw.load_after,
    )
    world_size = raw.config.parallelism.world_size
    meter = raw.repeats[timing.headline_repeat].streamed.meter
    ceilings = None if raw.config.precision.is_slow else raw.ceilings  # measured in another format
    result = summary.result_of(timing, workload, world_size, ceilings, terms.peak, meter)
    peak = terms.peak.flops_per_second if terms.peak else None
    named = metrics.metrics_of(raw.config, raw.workload, timing, workload.tokens_per_step, peak)
    result = result.model_copy(update={"metrics": named})
    facts = Facts(
        precision=raw.config.precision,
        repeats=timings,
        shown=plugin.files,
        reference=pins.actual_digests(),
        pinned=pins.pinned_digests(),
        workload=workload,
        parallelism=raw.config.parallelism,
        ceilings=raw.ceilings,
        peak_flops=result.mfu.peak_flops if result.mfu else None,
        system=system,
        patches=plugin.declared_patches,
        helpers=plugin.declared_helpers,
        variables=plugin.environment,
        is_debug=bool(waivers_of(raw.config, timings, raw.interruption)),
        on_host=is_cpu(raw.config.device),
        added_up=raw.config.added_up,
        records_steps=raw.negotiated.offer.lacks.eager_kernels,
        constant_rate=raw.config.constant_rate,
        complete=raw.config.audit is AuditMode.COMPLETE,
        sharp_start=sharp_of(raw.config, workload),
    )
    judged = _judge(raw, directory, facts)
    record = _record(raw, directory, timing, result, system, plugin, workload, judged)
    directory.write(run_directory.AUDIT, pretty_bytes(record.audit))
    directory.write(run_directory.SYSTEM, pretty_bytes(record.system))
    return record


def _name_evidence(raw: Raw, directory: RunDirectory, plugin: PluginFacts) -> None:
    """Write beside each repeat's evidence the names of run, window and plugin."""
    for n, repeat in enumerate(raw.repeats):
        timing = repeat.streamed.timing
        named = evidence.RepeatEvidence(
            run_id=raw.run_id,
            repeat=n,
            seed=raw.config.seed,
            nonce=timing.nonce,
            warmup_steps=timing.warmup_steps,
            timed_steps=timing.timed_steps,
            plugin=plugin.name,
            plugin_sha256=evidence.plugin_digest(plugin.files),
        )
        directory.write(evidence.path(n, evidence.REPEAT), pretty_bytes(named))


def waivers(config: RunConfig) -> tuple[str, ...]:
    """Return the reasons for which a run is a debug run; empty for an official run.

    Example: ``--audit off``.
    """
    official = asdict(workloads.find(config.workload, {}, config.definition).shape)
    found = [
        f"--{name.replace('_', '-')} {value} (official: {official[name]})"
        for name, value in config.shape_overrides.items()
        if value != official[name]
    ]
    found += workloads.of(config).otherwise(config)
    if config.definition is not None:
        found.append(f"--workload {config.workload} (a model of the user's own)")
    if config.timed_steps < config.mode.official_steps:
        usual = config.mode.official_steps
        found.append(f"--timed-steps {config.timed_steps} (official: {usual})")
    if config.mode is Mode.TRAIN and config.timed_steps > MOST_TIMED_STEPS:
        most = f"official: {MOST_TIMED_STEPS} at most; --repeats times more"
        found.append(f"--timed-steps {config.timed_steps} ({most})")
    if config.audit is AuditMode.OFF:
        found.append("--audit off")
    if config.nonce is not None:
        found.append("--nonce (replayed: what llmb draws was known before the run)")
    if config.constant_rate:
        found.append("--constant-rate (official: drawn for each step)")
    if config.mode is Mode.TRAIN and config.precision.underflows:
        why = "rule L1 can repeat no step: honest runs part within a few steps"
        found.append(f"FP16 without a loss scale (official: --mixed-precision; {why})")
    if config.warmup_steps > MOST_WARMUP_STEPS:
        most = f"official: {MOST_WARMUP_STEPS} at most"
        found.append(f"--warmup-steps {config.warmup_steps} ({most})")
    return tuple(found)


def waivers_of(
    config: RunConfig, repeats: Sequence[RepeatTiming], interruption: Interruption | None = None
) -> tuple[str, ...]:
    """Return the reasons for which a run with known windows is a debug run.

    A run that ended early is a debug run, even after a finished audit, for two reasons. The run's
    draws lay on a disk before use. A user who ends runs can choose the repeats that count.
    """
    found = [*waivers(config)]
    seconds = min(timing.stop_ns - timing.start_ns for timing in repeats) / 1e9
    if seconds < LEAST_WINDOW_S:
        advice = _longer(config, 1.1 * LEAST_WINDOW_S / max(seconds, 1e-3))
        found.append(f"a window of {seconds:.1f} s (official: {LEAST_WINDOW_S:.0f}; {advice})")
    if interruption is not None:
        found.append(interruption.text)
    return tuple(found)


def _longer(config: RunConfig, factor: float) -> str:
    """Return options that make the window ``factor`` times as long, or a little longer.

    Example: ``--timed-steps 60``, or ``--batch-size 8 --accumulate 4`` where steps are too short.
    """
    enough = math.ceil(factor * config.timed_steps)
    if config.mode is not Mode.TRAIN or enough <= MOST_TIMED_STEPS:
        return f"--timed-steps {enough}"
    steps = max(config.timed_steps, config.mode.official_steps)
    larger = math.ceil(factor * config.timed_steps / steps)
    return f"--batch-size {config.batch_size * larger} --accumulate {config.accumulate * larger}"


def interruption_of(
    error: LlmbError | KeyboardInterrupt, phase: str, repeats: Sequence[Repeat], asked: int
) -> Interruption:
    """Return the record of ``error``, an end of a run of ``asked`` repeats in ``phase``."""
    open_audits = [n for n, repeat in enumerate(repeats) if repeat.ended is not None]
    digests = {
        evidence.path(n, name): digest
        for n in open_audits
        for name, digest in repeats[n].files.items()
    }
    weights = {k: v for n in open_audits for k, v in repeats[n].examined.weights.items()}
    first = open_audits[0] if open_audits else len(repeats)
    return Interruption(
        by=error.by if isinstance(error, Interrupted) else str(error) or "SIGINT",
        phase=phase,
        repeat=min(first, asked - 1),
        repeats=asked,
        evidence=digests,
        weights=weights,
    )


def _record(
    raw: Raw,
    directory: RunDirectory,
    timing: Timing,
    result: Result,
    system: SystemDescription,
    plugin: PluginFacts,
    workload: WorkloadFacts,
    judged: Judgement,
) -> RunRecord:
    config, linked = raw.config, _interconnect(raw, directory, timing)
    waived = waivers_of(config, timing.repeats, raw.interruption)
    warnings = summary.warnings_of(timing, result, raw.load_before, raw.load_after, usable_cores())
    warnings += consequences(config, raw.negotiated.offer.lacks)
    warnings += tuple(dict.fromkeys(f for repeat in raw.repeats for f in repeat.examined.failures))
    warnings += (*raw.notes, *dict.fromkeys(n for repeat in raw.repeats for n in repeat.notes))
    if linked is not None and {rate.kind for rate in linked.rates} != {*KINDS}:
        warnings += (_NO_LINKS,)
    return RunRecord(
        run_id=raw.run_id,
        created_utc=raw.created.isoformat().replace("+00:00", "Z"),
        llmb_version=__version__,
        rules_version=RULES_VERSION,
        reference_digest=pins.reference_digest(pins.actual_digests()),
        class_="debug" if waived else "official",
        waivers=waived,
        config=_shown(config),
        seed_commitment=raw.seed_commitment,
        reproduction_of=_reproduction(raw.original, result),
        workload=workload,
        plugin=plugin,
        topology=_topology(raw, directory, timing),
        interconnect=linked,
        system=system,
        precision=PrecisionFacts(
            declared=config.precision.name,
            effective=judged.effective,
            bits=judged.bits,
            how="measured" if judged.precision_observed else "not observed",
        ),
        precision_recipe=judged.precision_recipe,
        timing=timing,
        ceilings=raw.ceilings,
        batch_size_search=raw.search,
        duration=_duration(raw),
        processes=raw.processes,
        result=result,
        interruption=raw.interruption,
        warnings=warnings if raw.ceilings else (*warnings, NO_CEILING),
        audit=judged.audit,
        diff=_diff(raw, directory),
    )


def _duration(raw: Raw) -> Duration | None:
    estimate = raw.negotiated.estimate
    if estimate is None:
        return None
    return Duration(
        estimated_s=estimate.seconds,
        real_s=raw.real_s,
        within_s=estimate.within_s,
        rates=estimate.rates,
        start_s=estimate.start_s,
    )


def _reproduction(original: Original | None, result: Result) -> ReproductionOf | None:
    if original is None:
        return None
    more = (result.tokens_per_second / original.tokens_per_second - 1) * 100
    return ReproductionOf(**original.model_dump(), difference_percent=more)


def _shown(config: RunConfig) -> RunConfig:
    """Return ``config`` for the record: file names without the user's folders.

    Example: ``/home/ann/wiki.bin`` becomes ``wiki.bin``.
    """
    changed: dict[str, object] = {}
    if config.data is not None:
        tokenizer = config.data.tokenizer
        name = tokenizer and Path(tokenizer).name
        paths = {"path": Path(config.data.path).name, "tokenizer": name}
        changed["data"] = config.data.model_copy(update=paths)
    if config.weights is not None:
        folder = {"path": Path(config.weights.path).name}
        changed["weights"] = config.weights.model_copy(update=folder)
    return config.model_copy(update=changed)


def _facts(raw: Raw) -> WorkloadFacts:
    shape, data = raw.workload.shape, raw.config.data
    return WorkloadFacts(
        name=raw.workload.name,
        family=raw.workload.family,
        mode=raw.config.mode.value,
        parameters=parameter_count(shape),
        flops_per_token=flops_of(raw.config.mode, shape),
        tokens_per_step=raw.workload.tokens_per_step(
            raw.config.global_batch_size, raw.config.new_tokens
        ),
        shapes=asdict(shape),
        tokens="random" if data is None else f"data {data.sha256[:12]}",
        optimizer=raw.workload.recipe.optimizer,
        clip_grad_norm=raw.workload.recipe.clip_grad_norm,
    )


def _topology(raw: Raw, directory: RunDirectory, timing: Timing) -> Topology:
    config = raw.config
    seen = _ranks_seen(raw, directory, timing)
    first = Rank(
        rank=0,
        host=host.host_digest(),
        device=config.device,
        peak_memory_bytes=timing.peak_memory_bytes,
        fence_ns=timing.fence_ns,
        alone_s=seen[0].alone_s if seen else None,
    )
    others = (
        _as_recorded(seen[number], timing) if seen else _unknown(number)
        for number in range(1, config.parallelism.world_size)
    )
    ranks = (first, *others)
    nodes = len({rank.host for rank in ranks if rank.host})
    return Topology(
        nodes=nodes,
        devices_per_node=len(ranks) // nodes,
        world_size=config.parallelism.world_size,
        parallelism=config.parallelism,
        ranks=ranks,
    )


def _interconnect(raw: Raw, directory: RunDirectory, timing: Timing) -> Interconnect | None:
    """Return the links between the ranks; no rates of a library other than the workers'.

    Example: a plugin drives the processor with a library of its own, and gloo was measured.
    """
    found, repeat = raw.interconnect, timing.headline_repeat
    if found is None or evidence.RANKS not in raw.repeats[repeat].files:
        return found
    used = _load(directory, repeat, evidence.RANKS, evidence.RanksEvidence).library
    if found.library in (None, used):
        return found
    directory.log(f"{found.library} was measured between the ranks, and the workers used {used}")
    return found.model_copy(update={"library": None, "rates": ()})


def _ranks_seen(
    raw: Raw, directory: RunDirectory, timing: Timing
) -> tuple[evidence.RankEvidence, ...]:
    """Return every rank's evidence from the rank's own worker; empty for a run of one rank."""
    repeat = timing.headline_repeat
    # A worker may have died after a complete window; the window is worth keeping.
    if evidence.RANKS not in raw.repeats[repeat].files:
        return ()
    return _load(directory, repeat, evidence.RANKS, evidence.RanksEvidence).ranks


def _as_recorded(seen: evidence.RankEvidence, timing: Timing) -> Rank:
    """Return ``seen`` without the fences after STOP."""
    fences = seen.fence_ns[: len(timing.fence_ns)]
    return Rank.model_validate({**seen.model_dump(), "fence_ns": fences})


def _unknown(number: int) -> Rank:
    return Rank(rank=number, host="", device="", peak_memory_bytes=None, fence_ns=())


def _check_evidence(raw: Raw, directory: RunDirectory) -> None:
    for n, repeat in enumerate(raw.repeats):
        theirs = set(repeat.streamed.evidence) & audited.NOT_BY_WORKER
        if theirs:
            raise RunFailedError(f"the worker wrote {min(theirs)}, which is not its to write")
        for name, announced in repeat.files.items():
            path = evidence.path(n, name)
            data = _read(directory.path / path)
            if hashlib.sha256(data).hexdigest() != announced:
                raise RunFailedError(f"{path} is not what the worker wrote: it was altered")


def _load(directory: RunDirectory, repeat: int, name: str, kind: type[E]) -> E:
    path = evidence.path(repeat, name)
    try:
        return kind.model_validate_json(_read(directory.path / path))
    except ValidationError as error:
        raise RunFailedError(f"{path} is not readable as evidence: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunFailedError(f"evidence {path.name} is missing: {error.strerror}") from error


def _plugin_facts(raw: Raw, directory: RunDirectory) -> PluginFacts:
    """Copy the plugin's sources into the run directory and describe them."""
    config, offer = raw.config, raw.negotiated.offer
    known = evidence.PLUGIN in raw.repeats[0].files
    if known:
        found = _load(directory, 0, evidence.PLUGIN, evidence.PluginEvidence)
    else:  # the worker died while being audited
        found = evidence.PluginEvidence(files=(), closed_components=(), declared_patches=())
    root = discovery.source_root(discovery.find(config.plugin).module).folder
    shown = []
    for file in found.files:
        source = (root / file.path).resolve()
        if not source.is_relative_to(root):
            raise RunFailedError(f"plugin file {file.path!r} lies outside its package")
        data = _read(source)
        directory.write(f"{run_directory.PLUGIN_FOLDER}/{file.path}", data)
        digest = hashlib.sha256(data).hexdigest()
        shown.append(FileDigest(path=file.path, sha256=digest, bytes=len(data)))
    timings = [repeat.streamed.timing for repeat in raw.repeats]
    waived = waivers_of(config, timings, raw.interruption)
    return PluginFacts(
        name=offer.plugin,
        distribution=offer.distribution,
        version=offer.version,
        options=dict(config.plugin_options),
        files=tuple(shown),
        closed_components=found.closed_components,
        strict=known and not found.closed_components and not waived,
        declared_patches=found.declared_patches,
        declared_helpers=found.declared_helpers,
        environment=tuple(sorted(raw.negotiated.terms.environment)),
        lacks=offer.lacks,
    )


def _judge(raw: Raw, directory: RunDirectory, facts: Facts) -> Judgement:
    announced = {
        evidence.path(n, name) for n, repeat in enumerate(raw.repeats) for name in repeat.files
    }

    def file(path: str) -> bytes | None:
        return _read(directory.path / path) if path in announced else None

    try:
        return judge(file, facts)
    except UnreadableError as error:
        raise RunFailedError(str(error)) from error


def _diff(raw: Raw, directory: RunDirectory) -> Diff:
    """Write the three readable diffs and return them as data."""
    model = _load(directory, 0, evidence.MODEL, evidence.ModelEvidence)
    weights = _load(directory, 0, evidence.WEIGHTS, evidence.WeightsEvidence)
    settings = _load(directory, 0, evidence.SETTINGS, evidence.SettingsEvidence)
    set_early = {
        f"environment.{name}": value for name, value in raw.negotiated.terms.environment.items()
    }
    before, after = diff.settings_sides(settings, set_early)
    base = sources.compare()
    texts = {
        run_directory.MODEL_DIFF: diff.unified(model.before, model.after, "model"),
        run_directory.SETTINGS_DIFF: diff.unified(before, after, "settings"),
        run_directory.SOURCES_DIFF: plain_text(f"# llmb against {base.base}\n{base.text}"),
    }
    for name, text in texts.items():
        directory.write(name, text.encode())
    return Diff(
        model=diff.model_diff(model, weights),
        settings=diff.setting_changes(before, after),
        sources=base.changed,
        sources_base=base.base,
    )
