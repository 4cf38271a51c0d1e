"""Recomputes a bundle's run from config, seed and nonce, for ``llmb verify --recompute``.

No code of the bundle is run or imported, and no plugin is loaded. ``replay_run`` makes the first
weights, the tokens and the steps; ``reference_run`` makes the last step and the probes. Only the
compared numbers, and the tokens drawn in mode generate, are read from the bundle's evidence.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Literal

from llmb import clock, workloads
from llmb.audit import recomputed
from llmb.audit.bench import LEDGER, OPTIMIZER, PROBED, Bench, UnreadableError, facts_of
from llmb.audit.recomputed import Compared, Made
from llmb.audit.rule import Evidence
from llmb.config import FP32, Mode, Precision, RunConfig, idle_waiting, torch_alone
from llmb.errors import (
    BundleRefusedError,
    NotEnoughMemoryError,
    RunFailedError,
    UnavailableError,
)
from llmb.measure import duration
from llmb.plugin.builtin import host
from llmb.records import arrays, audited, draws, evidence
from llmb.records.audited import MOMENTS, PristineEvidence, ProbedEvidence, StepsEvidence
from llmb.records.bundle import Bundle
from llmb.records.canonical import pretty_bytes
from llmb.records.draws import Draws
from llmb.records.run_record import Rates, RepeatTiming, RunRecord
from llmb.records.seeds import token_seed
from llmb.supervision.lacking import host_patience_s
from llmb.supervision.memory import Load, needed_bytes
from llmb.supervision.negotiation import for_children
from llmb.supervision.run_phases import Display
from llmb.wire.child import Child
from llmb.wire.measurements import MeasuredRates, RatesOrder
from llmb.wire.messages import (
    CallsToReplay,
    CallToReplay,
    Done,
    EvidenceFile,
    Phase,
    ReferenceOrder,
    ReplayOrder,
    StreamToReplay,
    Tick,
)
from llmb.workloads.arithmetic import parameter_count
from llmb.workloads.memory import MemoryJob, activations_at_loss, own
from llmb.workloads.workload import Workload

FP64 = Precision(name="FP64", bits=64, dtype="float64")
Extent = Literal["quick", "full"]
_MODEL = Evidence(evidence.MODEL, evidence.ModelEvidence.model_validate_json)
#: Steps, or calls, to recompute unless all are requested.
QUICK = 3
#: Sums of learning rates for which weights, of deviation 0.02, stay near and hardly move.
_NEAR, _HARDLY = 1e-2, 1e-3
#: Seconds of silence after which a process counts as hanging.
_LIMIT_S = 3600.0
_RATES_LIMIT_S = 120.0
_MOMENT_S = 0.5
#: Bytes per parameter while the reference makes passes: llama-1.4b took 9.8 to 12.
_REFERENCE_BYTES = 12
#: A parameter in a module tree, such as ``weight[64, 384]:bfloat16``.
_PARAMETER = re.compile(r"[\w.]+\[[0-9, ]*\]:\w+")
#: Reasons why the weights at the end are unknown.
_APART = "the weights have moved too far by then to be known"
_BETWEEN = "the weights have moved since; --recompute full makes the steps between"
_EMPTY = b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "  # a safetensors file without a tensor


@dataclass(frozen=True)
class RecomputePlan:
    """The recomputed part of a bundle's run, and the needed memory."""

    config: RunConfig
    #: Per repeat: steps (calls, if the run trains nothing) to recompute, and steps of the run.
    steps: tuple[int, ...]
    all_steps: tuple[int, ...]
    need_bytes: int
    have_bytes: int
    #: Why steps cannot be recomputed; None if possible.
    why_no_steps: str | None

    @property
    def extent_text(self) -> str:
        """Number of recomputed steps. Example: ``3 of 35 steps``."""
        what = "steps" if self.config.mode is Mode.TRAIN else "calls"
        return f"{sum(self.steps)} of {sum(self.all_steps)} {what}"

    def __str__(self) -> str:
        """Return the extent and the needed memory, for people."""
        need, have = self.need_bytes / 1e9, self.have_bytes / 1e9
        what = f"{self.extent_text} and the probes"
        return f"recompute: {what}: {need:.1f} GB of memory ({have:.1f} GB free)"


@dataclass(frozen=True)
class Recomputed:
    """The result of a recomputation."""

    compared: tuple[Compared, ...]
    #: Number of first weights that are equal bit for bit, and number of all.
    same_weights: tuple[int, int]
    #: A sentence for each part that was not recomputed.
    left_out: tuple[str, ...]
    seconds: float

    @property
    def faults(self) -> tuple[str, ...]:
        """A sentence for each value that does not follow from the run's seed and nonce."""
        return tuple(fault for one in self.compared for fault in one.faults)


def plan(bundle: Bundle, record: RunRecord, extent: Extent) -> RecomputePlan:
    """Return the recomputation plan of a bundle that has passed all checks of its files.

    Raises:
        UnavailableError: the run cannot be recomputed here.
        NotEnoughMemoryError: the recomputation needs more memory than available.
        BundleRefusedError: the run's stream is longer or shorter than its window allows.
    """
    if record.config.data is not None:
        raise UnavailableError("recompute: the run's tokens are of files that no bundle holds")
    if record.config.weights is not None:
        raise UnavailableError("recompute: the run began with a checkpoint that no bundle holds")
    config = _here(record)
    every, made = [], []
    for number in range(len(record.timing.repeats)):
        bench = _bench(bundle, record, number)
        count = _probed(bench).last_step + 1
        timing = bench.timing
        most = draws.longest_stream(config.mode.value, timing.warmup_steps, timing.timed_steps)
        if not timing.warmup_steps + timing.timed_steps <= count <= most:
            raise BundleRefusedError(
                f"repeat {number} claims {count} steps, which does not fit its window ({most} at "
                "most)"
            )
        every.append(count)
        why = _why_no_steps(bench)
        possible = 0 if why else count
        if not bench.trains:
            possible = len(_calls(bench, record, number)) if not why else 0
        made.append(min(QUICK, possible) if extent == "quick" else possible)
    workload = workloads.of(config)
    why = _why_no_steps(_bench(bundle, record, 0))
    need, have = _needed(config, workload), host.available_memory_bytes()
    if need > have:
        raise NotEnoughMemoryError(
            f"recompute: {workload.name} in {config.precision.name} needs about {need / 1e9:.1f} "
            f"GB, there are {have / 1e9:.1f} GB free: verify it on a machine with more"
        )
    return RecomputePlan(config, tuple(made), tuple(every), need, have, why)


def estimate_s(planned: RecomputePlan) -> float:
    """Return the estimated seconds of the plan here, from a measurement of a few seconds."""
    config = planned.config.model_copy(
        update={"batch_size": planned.config.global_batch_size, "plugin_options": {"threads": 0}}
    )
    begin = clock.now_ns()
    with tempfile.TemporaryFile(buffering=0) as log, _child("ceilings", log) as child:
        start_s = (clock.now_ns() - begin) / 1e9
        dtypes = dict.fromkeys(duration.needed_dtypes(config.precision))
        child.send(RatesOrder(config=config, dtypes=tuple(dtypes)))
        message = child.receive(_RATES_LIMIT_S)
    if not isinstance(message, MeasuredRates):
        raise RunFailedError("the processor's rates were not measured in two minutes")
    return _estimate_s(planned, config, message.rates, start_s)


def recompute(
    bundle: Bundle, record: RunRecord, planned: RecomputePlan, display: Display
) -> Recomputed:
    """Recompute the ``planned`` part and compare the results with the evidence of ``bundle``.

    Raises:
        BundleRefusedError: evidence is no sample of the workload, or llmb writes no such file.
        UnavailableError: no value of the run follows from the seeds alone.
        RunFailedError: a process failed.
    """
    began = clock.now_ns()
    found, same = list[Compared](), (0, 0)
    left_out = [] if planned.why_no_steps is None else [f"steps: {planned.why_no_steps}"]
    for number, count in enumerate(planned.steps):
        bench = _bench(bundle, record, number)
        with tempfile.TemporaryDirectory(prefix="llmb-") as folder:
            repeat = _RepeatAgain(bundle, record, planned, number, count, Path(folder), display)
            made = repeat.made(bench)
        try:
            compared = [*recomputed.compared(bench, made)]
        except (UnreadableError, ArithmeticError, LookupError, ValueError) as error:
            raise BundleRefusedError(f"repeat {number}: evidence is incomplete ({error})") from None
        found += [_named(one, number) for one in compared] if number else compared
        same = recomputed.same_first_weights(bench, made)
        if not made.near_the_last and not number:
            possible = planned.why_no_steps is None and made.stable > _probed(bench).last_step
            why = _BETWEEN if possible else _APART
            left_out.append(f"the last step{'' if made.near else ' and the probes'}: {why}")
    if not found:
        raise UnavailableError(f"recompute: nothing can be compared ({'; '.join(left_out)})")
    return Recomputed(tuple(found), same, tuple(left_out), (clock.now_ns() - began) / 1e9)


@dataclass(frozen=True)
class Reach:
    """The parts of a repeat that recomputed steps tell something of."""

    #: Number of steps that honest runs stay together.
    stable: int
    #: Whether the weights after the recomputed steps are near the last step's weights: for the
    #: probes, and for the step itself.
    near: bool
    near_the_last: bool
    #: Fences with known weights, as the number of steps before each fence.
    fences: tuple[int, ...]


def reach(bench: Bench, steps: int) -> Reach:
    """Return the comparable parts of a repeat if its first ``steps`` are recomputed."""
    if not bench.trains:
        return Reach(0, near=True, near_the_last=True, fences=())
    if bench.facts.precision.stored_dtype == "float16":
        # Squares of gradients underflow: weights move by any distance.
        return Reach(0, near=False, near_the_last=False, fences=())
    optimizer, made = bench.facts.workload.optimizer, _probed(bench).last_step
    rates = [_rate(bench, step) for step in range(made)]
    far = [0.0, *accumulate(draws.drift([rate], optimizer) for rate in rates)]
    # A weight moves by its step's rate at most, however fast honest runs drift apart.
    moved = [min(pair) for pair in zip(far, [0.0, *accumulate(rates)], strict=True)]
    stable = sum(one <= draws.HORIZON for one in far)
    between = far[made] - far[max(0, steps - 1)]
    # The distances of probes were measured without dropout.
    near = stable > made and between <= _NEAR and not bench.drops
    known = (
        fence
        for fence in bench.timing.fence_steps
        if (fence < min(steps, stable) if steps else moved[min(fence, made)] <= _HARDLY)
    )
    return Reach(stable, near, near and between <= _HARDLY, tuple(known))


def _named(one: Compared, repeat: int) -> Compared:
    faults = tuple(f"repeat {repeat}: {fault}" for fault in one.faults)
    return Compared(f"repeat {repeat}: {one.what}", one.measured, one.limit, faults)


@dataclass
class _RepeatAgain:
    """One recomputed repeat, in a folder of its own."""

    bundle: Bundle
    record: RunRecord
    planned: RecomputePlan
    number: int
    #: Number of steps, or calls.
    count: int
    folder: Path
    display: Display

    def made(self, bench: Bench) -> Made:
        """Run both processes, and return the results."""
        for name in ("evidence", "scratch"):
            (self.folder / name).mkdir()
        with (self.folder / "log").open("wb", buffering=0) as log:
            trains = bench.trains
            steps = self.count if trains else 0
            known = reach(bench, steps)
            tokens = workloads.of(self.planned.config).tokens_per_step(
                self.planned.config.global_batch_size
            )
            self.display.stream(max(1, self.count), tokens, "making the run again")
            order = self._replay_order(bench, known.fences)
            weights = self._done("replay_run", order, log)[audited.LIVE_WEIGHTS]
            self.display.phase("the last step and the probes")
            self._done("reference_run", self._reference_order(bench, weights), log)
        shown = arrays.read((self._scratch / audited.REPLAYED).read_bytes())
        own = self._evidence
        pristine = PristineEvidence.model_validate_json((own / audited.PRISTINE).read_bytes())
        reference = arrays.read((own / audited.REFERENCE).read_bytes())
        calls = order.calls.calls if order.calls is not None else ()
        return Made(
            rows=shown.get(audited.ROWS),
            losses=shown.get(audited.LOSSES, ()),
            samples=shown.get(audited.SAMPLES, ()) if _stores_plainly(bench) else (),
            reference=reference,
            pristine=pristine,
            steps=steps,
            complete=steps == _probed(bench).last_step + 1 or not trains,
            fences=known.fences,
            stable=known.stable,
            near=known.near,
            near_the_last=known.near_the_last,
            calls=tuple(call.index for call in calls),
        )

    @property
    def _evidence(self) -> Path:
        return self.folder / "evidence"

    @property
    def _scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def _timing(self) -> RepeatTiming:
        return self.record.timing.repeats[self.number]

    def _token_seed(self, step: int) -> int:
        seed, nonce = self.record.config.seed, self._timing.nonce_at(step)
        return token_seed(seed, self.number, step, nonce)

    def _replay_order(self, bench: Bench, fences: tuple[int, ...]) -> ReplayOrder:
        drawn, kept = bench.drawn, bench.read(LEDGER)
        stream = calls = None
        places: tuple[int, ...] = ()
        digests = {}
        if kept is not None:
            digests[audited.LEDGER_VALUES] = self._copy(audited.LEDGER_VALUES)
        if bench.trains and self.count:
            steps, optimizer = range(self.count), bench.facts.workload.optimizer
            rates = (_rate(bench, step) for step in steps)
            stream = StreamToReplay(
                token_seeds=tuple(map(self._token_seed, steps)),
                rates=tuple(rates),
                least=self.count,
                seconds=0.0,
            )
            if drawn is not None and kept is not None:
                places = tuple(map(drawn.places, steps))
                if kept.moments != MOMENTS[: optimizer.moments]:
                    raise BundleRefusedError("rows of steps do not show the optimizer's moments")
        elif self.count and kept is not None:
            chosen = _calls(bench, self.record, self.number)[: self.count]
            calls = CallsToReplay(calls=chosen, least=self.count, seconds=0.0)
        groups = bench.needed(OPTIMIZER).groups if bench.trains else ()
        fused = groups[0].fused if groups else None
        return ReplayOrder(
            config=self._config,
            stream=stream,
            foreach=groups[0].foreach if groups and not fused else None,
            fused=fused,
            ledger=kept if places else None,
            places=places,
            fences=fences,
            calls=calls,
            evidence_folder=str(self._evidence),
            scratch_folder=str(self._scratch),
            digests=digests,
        )

    @property
    def _config(self) -> RunConfig:
        return for_children(self.planned.config)

    def _reference_order(self, bench: Bench, weights: str) -> ReferenceOrder:
        probed = _probed(bench)
        drawn = _draws(self.record, self._timing)
        digests = {audited.LIVE_WEIGHTS: weights}
        if not bench.trains:  # drawn tokens are copied like other numbers
            digests[audited.GRADIENTS] = self._copy(audited.GRADIENTS)
            none = StepsEvidence(steps=(), pause_ns=0, longest_pause_ns=0)
            digests[audited.STEPS] = self._write(audited.STEPS, pretty_bytes(none))
            digests[audited.STEP_VALUES] = self._write(audited.STEP_VALUES, _EMPTY)
        return ReferenceOrder(
            config=self._config,
            seed=probed.seed if drawn is None else drawn.audit(probed.last_step),
            token_seeds={"live": self._token_seed(probed.last_step)},
            evidence_folder=str(self._evidence),
            scratch_folder=str(self._scratch),
            digests=digests,
            passes=("live", *(name for name in ("branches", "head") if name in probed.passes)),
            stored_dtypes={},
        )

    def _copy(self, name: str) -> str:
        """Copy a file of the bundle to the folder a process reads; return the file's digest."""
        return self._write(name, self.bundle.files[evidence.path(self.number, name)])

    def _write(self, name: str, data: bytes) -> str:
        (self._evidence / name).write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def _done(
        self, module: str, order: ReplayOrder | ReferenceOrder, log: IO[bytes]
    ) -> dict[str, str]:
        """Let a process execute ``order``; return the digests of the written files.

        Raises:
            LlmbError: the process failed, or was silent for an hour.
        """
        written = dict[str, str]()
        limit_s = max(_LIMIT_S, host_patience_s(self.planned.config))
        with _child(module, log) as child:
            child.send(order)
            until = clock.now_ns() + int(limit_s * 1e9)
            while not isinstance(message := child.receive(_MOMENT_S), Done):
                if isinstance(message, EvidenceFile):
                    written[message.name] = message.sha256
                elif message is None or isinstance(message, Phase | Tick):
                    self.display.message(message)
                if message is not None:
                    until = clock.now_ns() + int(limit_s * 1e9)
                elif clock.now_ns() > until:
                    raise RunFailedError(f"recompute: {module} has said nothing for an hour")
        return written


@contextmanager
def _child(name: str, log: IO[bytes]) -> Iterator[Child]:
    """Yield a process of llmb that loads no plugin."""
    with idle_waiting(), Child(f"llmb.processes.{name}", {}, log) as child:
        yield child


def _here(record: RunRecord) -> RunConfig:
    """Return the config to recompute a run on this host, with all ranks in one process."""
    with torch_alone():
        from llmb.plugin.builtin.products import faster_way_of  # imports torch

    config = record.config
    narrow = config.precision.dtype in ("bfloat16", "float16")
    wide = narrow and faster_way_of(config.precision.dtype) == "wide"
    precision = config.precision.model_copy(update={"products": "FP32" if wide else None})
    constant = config.constant_rate or record.timing.repeats[0].nonce is None
    return config.model_copy(
        update={
            "precision": precision,
            "device": "cpu",
            "plugin": "cpu",
            "plugin_options": {},
            "constant_rate": constant,  # rules 2: the original's first weights
        }
    )


def _bench(bundle: Bundle, record: RunRecord, repeat: int) -> Bench:
    return Bench(bundle.files.get, facts_of(record, (), {}), repeat)


def _draws(record: RunRecord, timing: RepeatTiming) -> Draws | None:
    if timing.nonce is None:
        return None
    return Draws(timing.nonce, record.workload.optimizer, ledger=True, stamp=timing.stamp)


def _probed(bench: Bench) -> ProbedEvidence:
    probed = bench.read(PROBED)
    if probed is None:
        raise UnavailableError("recompute: the run was not audited (--audit off): nothing to hold")
    return probed


def _rate(bench: Bench, step: int) -> float:
    drawn = bench.drawn
    return bench.facts.workload.optimizer.lr if drawn is None else drawn.rate(step)


def _stores_plainly(bench: Bench) -> bool:
    """Tell whether modules hold the same parameters after post-processing as before.

    If the evidence has rows of steps, the rows' indices answer the question better. If ranks share
    a model, a fence reads the first rank's shard, with other elements than the full model.
    """
    if bench.facts.parallelism.is_shared:
        return False
    if bench.read(LEDGER) is not None:
        return True
    model = bench.read(_MODEL)
    return model is not None and _parameters(model.before) == _parameters(model.after)


def _parameters(tree: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return a module tree's modules with parameters, and each parameter's name and shape."""
    found = ((path, _PARAMETER.findall(text)) for path, text in tree.items())
    return [(path, own) for path, own in found if own]


def _why_no_steps(bench: Bench) -> str | None:
    """Return why no step, or call, is recomputed; None if steps are recomputed."""
    if (why := bench.why_no_ledger or bench.why_rough) is not None:
        return why
    if not bench.trains and (bench.drawn is None or bench.read(LEDGER) is None):
        return "the bundle shows nothing of its calls"
    return None


def _calls(bench: Bench, record: RunRecord, repeat: int) -> tuple[CallToReplay, ...]:
    """Return the calls with rows in the evidence, in order."""
    drawn, timing = bench.drawn, bench.timing
    if drawn is None or bench.trains:
        return ()
    return tuple(
        CallToReplay(
            index=call,
            token_seed=token_seed(record.config.seed, repeat, call, timing.nonce_at(call)),
            places=drawn.places(call),
        )
        for call in drawn.calls_compared(len(bench.timing.commitments))
    )


def _needed(config: RunConfig, workload: Workload) -> int:
    """Return the bytes of memory that the larger of the two processes needs."""
    load = Load(
        config.mode,
        cached=(config.prompt_length or 0) + (config.new_tokens or 0),
        generated=config.new_tokens or 0,
    )
    needed = needed_bytes(workload, config.precision, config.global_batch_size, load)
    passes = _REFERENCE_BYTES * parameter_count(workload.shape)
    if config.mode is Mode.TRAIN:  # without a backward pass almost nothing is kept
        wide = FP64 if config.precision.dtype == "float32" else FP32
        stored, size = own(wide.bytes_per_value), config.global_batch_size
        job = MemoryJob(workload.shape, stored, size, scores=False)
        passes += 2 * int(activations_at_loss(job))
    return max(needed, passes)


def _estimate_s(planned: RecomputePlan, config: RunConfig, rates: Rates, start_s: float) -> float:
    shape = workloads.of(config).shape
    return sum(
        duration.recomputation_s(shape, config, rates, count, start_s) for count in planned.steps
    )
