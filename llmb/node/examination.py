"""Examines a node step by step. A failed step is recorded, and the examination goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Literal

from llmb import __version__, clock, supervisor, workloads
from llmb.config import is_cpu, limit_threads
from llmb.endings import RunProgress
from llmb.errors import LlmbError, is_out_of_memory
from llmb.measure import links
from llmb.node import judgement
from llmb.node.bus import RANK_TIMEOUT_S, time_collectives
from llmb.node.nearest import nearest
from llmb.node.plan import NodePlan, Seat
from llmb.node.progress import NodeProgress
from llmb.node.runs import NodeRun, on_cores
from llmb.plugin.builtin.host import usable_cores
from llmb.records.bundle import read_record
from llmb.records.ceiling import Ceiling
from llmb.records.interconnect import CollectiveRate, HostLinks
from llmb.records.node_report import (
    DeviceCeiling,
    Nearest,
    NodeReport,
    NodeStep,
    Speed,
    StepName,
)
from llmb.records.redact import redact_paths
from llmb.records.run_record import RunRecord
from llmb.supervision import doctor
from llmb.supervision.forecast import Forecast, ForecastPart, of_request
from llmb.supervision.run_phases import Display

#: Seconds of matrix products per device, by the size of the runs.
_CEILING_S = {"full": 2.0, "debug": 0.5}
#: Shortest time limit of a run in seconds, however little of the total time is left.
_LEAST_S = 60.0
#: Number of runs that must fit in the time left before another device is run alone: the device's
#: own run, all devices side by side, and DDP. Each run counts as long as the longest run so far.
_STILL_TO_COME = 3

#: Notes on a step, and faults of a step.
_Told = tuple[list[str], list[str]]


def examine(plan: NodePlan, display: Display) -> NodeReport:
    """Carry out every step of ``plan`` and return the report; run directories stay."""
    return _NodeExamination(plan, display).carry_out()


class _NodeExamination:
    """One node under examination."""

    def __init__(self, plan: NodePlan, display: Display) -> None:
        self._plan, self._display = plan, display
        before = plan.progress
        self._began_ns = clock.now_ns() - round(before.seconds * 1e9)
        self._devices = [*before.devices]
        self._steps: list[NodeStep] = [*before.steps]
        self._collectives: tuple[CollectiveRate, ...] = before.collectives
        self._links: HostLinks | None = before.links
        self._ddp: Speed | None = before.ddp
        self._record = _first_record(before, plan.folder)
        self._batch_size = before.batch_size
        self._forecast = _forecast(plan)

    def carry_out(self) -> NodeReport:
        # The processes of a device have equally many threads, alone or beside other devices.
        limit_threads(max(1, usable_cores() // len(self._devices)))
        self._display.foresee(self._forecast)
        self._step("doctor", self._doctor)
        self._step("ceilings", self._ceilings)
        self._step("collectives", self._time_collectives, of_ranks=True)
        self._step("alone", self._alone)
        self._step("together", self._together, of_ranks=True)
        self._step("ddp", self._as_ranks, of_ranks=True)
        return self._report()

    def _step(self, name: StepName, work: Callable[[], _Told], *, of_ranks: bool = False) -> None:
        if name in {step.name for step in self._plan.progress.steps}:
            return  # the step was finished before an interruption
        self._take(name, work, of_ranks=of_ranks)
        self._plan.progress.model_copy(
            update={
                "seconds": (clock.now_ns() - self._began_ns) / 1e9,
                "batch_size": self._batch_size,
                "devices": tuple(self._devices),
                "steps": tuple(self._steps),
                "collectives": self._collectives,
                "links": self._links,
                "ddp": self._ddp,
            }
        ).write(self._plan.folder)

    def _take(self, name: StepName, work: Callable[[], _Told], *, of_ranks: bool) -> None:
        self._forecast.enter((name, 0))
        if of_ranks and len(self._devices) == 1:
            message = "there is one device"
            self._steps.append(
                NodeStep(name=name, status="left out", seconds=0, messages=(message,))
            )
            return
        began_ns = clock.now_ns()
        try:
            notes, faults = work()
        except LlmbError as error:
            notes, faults = [], [str(error)]
        told = faults or notes
        self._steps.append(
            NodeStep(
                name=name,
                status="failed" if faults else "done",
                seconds=round((clock.now_ns() - began_ns) / 1e9, 1),
                messages=tuple(map(redact_paths, told)),
            )
        )

    def _doctor(self) -> _Told:
        self._display.phase("looking at llmb, torch and plugins")
        found = doctor.examine()
        self._links = links.describe()
        faults = [found.torch.error] if found.torch.error else []
        if found.llmb.reference_changed:
            faults.append(f"changed in the reference: {', '.join(found.llmb.reference_changed)}")
        return list(found.missing), faults

    def _ceilings(self) -> _Told:
        if self._plan.config.precision.is_slow:
            return [f"{self._plan.config.precision.name} is emulated here: not measured"], []
        faults = []
        for seat in self._plan.seats:
            self._display.phase(f"{seat.device.name}: what it attains")
            request = self._plan.request.model_copy(
                update={"device": seat.name, "batch_size": self._plan.config.batch_size}
            )
            try:
                with on_cores(seat.cores):
                    ceiling = supervisor.calibrate(request, _CEILING_S[self._size])
            except LlmbError as error:
                faults.append(f"{seat.device.name}: {error}")
            else:
                self._note(seat, ceiling=self._attained(ceiling))
        return [], faults

    def _attained(self, ceiling: Ceiling) -> DeviceCeiling:
        best = ceiling.best_product_flops_per_second or ceiling.flops_per_second
        peak = self._plan.negotiated.terms.peak
        return DeviceCeiling(
            product_flops_per_second=best,
            of_datasheet=best / peak.flops_per_second if peak else None,
            memory_bytes_per_second=ceiling.memory_bytes_per_second,
        )

    def _time_collectives(self) -> _Told:
        count = len(self._devices)
        self._display.phase(f"collectives between {count} ranks")
        self._collectives = time_collectives(
            self._plan.negotiated, count, self._limit_s(), lambda: self._display.message(None)
        )
        return [], []

    def _alone(self) -> _Told:
        notes, faults, longest_s = [], [], 0.0
        for seat in self._plan.seats:
            name = seat.device.name
            if longest_s * _STILL_TO_COME > self._left_s():
                notes.append(f"{name} was not run alone: the {self._plan.seconds:.0f} s would end")
                continue
            began_ns = clock.now_ns()
            self._forecast.enter(("alone", seat.device.index))
            try:
                self._display.phase(f"{name} alone")
                self._note(seat, alone=self._run_alone(seat))
            except LlmbError as error:
                faults.append(f"{name}: {error}")
            longest_s = max(longest_s, (clock.now_ns() - began_ns) / 1e9)
        return notes, faults

    def _run_alone(self, seat: Seat) -> Speed:
        """Return the speed of one device, running alone.

        Out of memory, and no run has succeeded yet: halve the batch size and try again. A batch
        size named by the user is never changed. Example: 8, 4, 2, 1 sequences.
        """
        try:
            with self._start(seat, "alone") as run:
                return self._speed(run)
        except LlmbError as error:
            accumulated = self._plan.config.accumulate
            settled = self._plan.request.batch_size is not None or self._record is not None
            if settled or self._batch_size == accumulated or not is_out_of_memory(error):
                raise
        self._batch_size = max(1, self._batch_size // accumulated // 2) * accumulated
        return self._run_alone(seat)

    def _together(self) -> _Told:
        faults, seats = [], self._plan.seats
        with ExitStack() as stack:
            self._display.phase(f"all {len(seats)} devices side by side")
            runs = [stack.enter_context(self._start(seat, "together")) for seat in seats]
            for seat, run in zip(seats, runs, strict=True):
                try:
                    self._note(seat, together=self._speed(run))
                except LlmbError as error:
                    faults.append(f"{seat.device.name}: {error}")
        return [], faults

    def _as_ranks(self) -> _Told:
        count = len(self._devices)
        self._display.phase(f"{count} ranks of one run (DDP)")
        ranks = (f"--nproc={count}", f"--rank-timeout={RANK_TIMEOUT_S:.0f}")
        with NodeRun((*self._arguments(), *ranks), self._plan.folder / "ddp") as run:
            self._ddp = self._speed(run)
        return [], []

    def _start(self, seat: Seat, step: StepName) -> NodeRun:
        folder = self._plan.folder / step / str(seat.device.index)
        with on_cores(seat.cores):
            return NodeRun((*self._arguments(), f"--device={seat.name}"), folder)

    def _arguments(self) -> tuple[str, ...]:
        """Return the ``llmb run`` options shared by all runs, batch size included."""
        if self._plan.request.batch_size is not None:
            return self._plan.arguments
        return (*self._plan.arguments, f"--batch-size={self._batch_size}")

    def _speed(self, run: NodeRun) -> Speed:
        path, record = run.record(self._limit_s(), lambda: self._display.message(None))
        self._record = self._record or record
        result = record.result
        return Speed(
            run=path.relative_to(self._plan.folder).as_posix(),
            tokens_per_second=result.tokens_per_second,
            ci95=result.ci95,
            of_datasheet=result.mfu.value if result.mfu else None,
            of_ceiling=result.fraction_of_ceiling,
        )

    def _note(self, seat: Seat, **found: DeviceCeiling | Speed) -> None:
        index = seat.device.index
        self._devices[index] = self._devices[index].model_copy(update=found)

    def _left_s(self) -> float:
        return self._plan.seconds - (clock.now_ns() - self._began_ns) / 1e9

    def _limit_s(self) -> float:
        """Return the seconds one run may take: half the time left, but at least 60 s.

        A run that hangs must not use up the time of the later runs.
        """
        return max(_LEAST_S, self._left_s() / 2)

    @property
    def _size(self) -> Literal["full", "debug"]:
        return "debug" if self._plan.is_debug else "full"

    def _report(self) -> NodeReport:
        plan, devices = self._plan, self._devices
        outliers = judgement.outliers(devices, plan.limits)
        share = judgement.efficiency(devices, self._ddp)
        held = self._nearest()
        reasons = judgement.reasons(self._steps, devices, outliers, share, held, plan.limits)
        why = tuple(reasons)
        return NodeReport(
            created_utc=clock.utc_now().isoformat().replace("+00:00", "Z"),
            llmb_version=__version__,
            plugin=plan.config.plugin,
            precision=plan.config.precision.name,
            workload=workloads.of(plan.config).name,
            size=self._size,
            batch_size=self._batch_size,
            limits=plan.limits,
            steps=tuple(self._steps),
            devices=tuple(devices),
            collectives=self._collectives,
            links=self._links,
            ddp=self._ddp,
            ddp_efficiency=share,
            outliers=outliers,
            nearest=held,
            verdict="no" if why else "yes",
            reasons=why,
        )

    def _nearest(self) -> Nearest | None:
        alone = [device.alone.tokens_per_second for device in self._devices if device.alone]
        if self._record is None or not alone:
            return None
        return nearest(self._plan.submissions, self._record, median(alone))


def _forecast(plan: NodePlan) -> Forecast:
    """Return the foreseen steps; a run counts as long as a forecast of ``llmb run`` says."""
    run = of_request(plan.request, workloads.of(plan.request), RunProgress())
    count, run_s = len(plan.seats), run.left_s()
    done = {step.name for step in plan.progress.steps}
    seconds = {
        "doctor": 5 * run.start_s,
        "ceilings": count * 4 * run.start_s,
        "collectives": 4 * run.start_s,
        "together": count * run_s if is_cpu(plan.config.device) else run_s,
        "ddp": count * run_s if is_cpu(plan.config.device) else run_s,
    }
    if count == 1:
        done |= {"collectives", "together", "ddp"}
    stages = {(name, 0): s for name, s in seconds.items() if name not in done}
    if "alone" not in done:
        stages |= {("alone", seat.device.index): run_s for seat in plan.seats}
    order = ("doctor", "ceilings", "collectives", "alone", "together", "ddp")
    coming = sorted(stages, key=lambda stage: (order.index(stage[0]), stage[1]))
    parts = [ForecastPart(stage, stages[stage]) for stage in coming]
    return Forecast(parts, 0.0, None, run.start_s)


def _first_record(progress: NodeProgress, folder: Path) -> RunRecord | None:
    """Return the record of the first run alone from before an interruption, None if none exists."""
    runs = [device.alone for device in progress.devices if device.alone]
    return read_record(folder / runs[0].run) if runs else None
