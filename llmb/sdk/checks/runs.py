"""Tiny runs of the real ``llmb run``, one in each native format, read from the run directories.

This process holds no vendor code: a run uses the same processes as every run.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

from llmb import clock, supervisor
from llmb.config import FP32, Precision, RunRequest
from llmb.errors import LlmbError, RunFailedError
from llmb.records import draws, evidence
from llmb.records.evidence import ParameterDigest, WeightsEvidence
from llmb.records.finding import Level, Status
from llmb.records.run_directory import LOG
from llmb.sdk.report import CheckError, SkipError
from llmb.supervision.forecast import Forecast
from llmb.supervision.run_phases import Display
from llmb.supervision.silence import Silence
from llmb.supervisor import Finished
from llmb.wire.messages import Fence, Offer, Phase, Tick

_REFERENCE = "cpu"
#: Significant bits of a product's operands, by the bits of the format; losses may differ by four
#: units in the last bit, and by the order of summation.
_SIGNIFICANT = ((32, 24), (19, 11), (9, 8), (0, 3))
_ORDER_OF_SUMMATION = 1e-4
#: Moments in FP16 underflow: a square below 2^-24 is 0, and AdamW takes larger steps than in FP32.
#: From the second fence on the tolerance is this many times the tolerance of the first: after 20
#: steps the losses of 11 honest runs were 1.7 % to 4.1 % from the reference's (0.04 % at the first
#: fence of one of the runs).
_UNDERFLOWING = 8.0


@dataclass
class Trials:
    """The runs of one plugin, and the reference's runs; each run is made at the first request."""

    request: RunRequest
    offer: Offer
    folder: Path
    display: Display
    #: Seconds of silence after which a worker is ended.
    limit_s: float
    errors: dict[str, LlmbError] = field(default_factory=dict)
    #: All runs have the same tokens and learning rates.
    nonce: str = field(default_factory=draws.new_nonce)
    _made: dict[str, Finished] = field(default_factory=dict)

    @property
    def formats(self) -> tuple[Precision, ...]:
        """Formats to try: the native formats."""
        return tuple(precision for precision in self.offer.precisions if precision.native)

    def results(self) -> list[tuple[Precision, Finished]]:
        """Run in every format; return the runs that finished."""
        runs = ((precision, self._run(precision)) for precision in self.formats)
        return [(precision, run) for precision, run in runs if run is not None]

    def finished(self) -> list[tuple[Precision, Finished]]:
        """Return the runs that finished.

        Raises:
            SkipError: no run finished.
        """
        results = self.results()
        if not results:
            raise SkipError("no run came to its end")
        return results

    def reference(self, warmup_steps: int) -> Finished:
        """Return the run of the built-in CPU plugin in FP32, for the same seed and nonce."""
        name = f"{_REFERENCE} {FP32.name} {warmup_steps}"
        if name not in self._made:
            request = self._asked(
                {
                    "plugin": _REFERENCE,
                    "device": "cpu",
                    "precision": FP32.name,
                    "warmup_steps": warmup_steps,
                    "plugin_options": {},
                }
            )
            self._made[name] = supervisor.run(request, self.folder, self._watched("reference"))
        return self._made[name]

    def _run(self, precision: Precision) -> Finished | None:
        name = precision.name
        if name not in self._made and name not in self.errors:
            request = self._asked({"precision": name})
            try:
                self._made[name] = supervisor.run(request, self.folder, self._watched(name))
            except LlmbError as error:
                self.errors[name] = error
        return self._made.get(name)

    def _asked(self, update: dict[str, object]) -> RunRequest:
        return self.request.model_copy(update={"nonce": self.nonce, **update})

    def _watched(self, label: str) -> _Watched:
        return _Watched(self.display, label, self.limit_s)


@dataclass
class _Watched:
    """Passes progress on, and raises an error when a worker is silent for too long."""

    display: Display
    label: str
    limit_s: float
    _heard_ns: int = field(default_factory=lambda: clock.now_ns())

    def foresee(self, forecast: Forecast) -> None:
        """Ignore the forecast of one run of many."""

    def phase(self, name: str) -> None:
        self._heard_ns = clock.now_ns()
        self.display.phase(f"run in {self.label}: {name}")

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        self._heard_ns = clock.now_ns()
        self.display.stream(steps, tokens_per_step, f"run in {self.label}")

    def note(self, text: str) -> None:
        """Ignore notes: only readers of the run's figure need notes."""

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        if isinstance(message, (Phase, Tick, Fence)):
            self._heard_ns = clock.now_ns()
        elif clock.now_ns() - self._heard_ns > self.limit_s * 1e9:
            raise RunFailedError(f"the worker has been silent for {self.limit_s:.0f} s: it hangs")
        self.display.message(message)


def finish(trials: Trials) -> str:
    """Run in every format; every run must finish."""
    results = trials.results()
    if trials.errors:
        raise CheckError("; ".join(f"{name}: {error}" for name, error in trials.errors.items()))
    if not results:
        raise SkipError("the plugin offers no native format here")
    return ", ".join(
        f"{precision.name} {run.record.result.tokens_per_second:.0f} tokens/s"
        for precision, run in results
    )


def rules(trials: Trials) -> str:
    """Check for broken rules, and for O1 and S1, which every honest run passes."""
    passed: set[str] = set()
    for precision, run in trials.finished():
        findings = run.record.audit.findings
        for finding in findings:
            if finding.level is Level.BLOCK and finding.status is Status.FAIL:
                raise CheckError(f"{precision.name}: rule {finding.id}: {finding.message}")
        passed = {finding.id for finding in findings if finding.status is Status.PASS}
        if missing := {"O1", "S1"} - passed:
            raise CheckError(f"{precision.name}: rule {min(missing)} was not seen to be kept")
    return f"{', '.join(sorted(passed))} passed, none failed"


def weights(trials: Trials) -> str:
    """Compare the digests before and after post-processing, by canonical name."""
    count = 0
    for precision, run in trials.finished():
        data = (run.path / evidence.path(0, evidence.WEIGHTS)).read_bytes()
        found = WeightsEvidence.model_validate_json(data)
        processed = {each.name: each for each in found.processed}
        if {*processed} != {each.name for each in found.pristine}:
            raise CheckError(f"{precision.name}: the parameters have other names than before")
        for before in found.pristine:
            if not _is_kept(before, processed[before.name]):
                raise CheckError(f"{precision.name}: {before.name} is not the pristine one")
        count = len(found.pristine)
    return f"{count} parameters in {len(trials.finished())} runs"


def _is_kept(before: ParameterDigest, after: ParameterDigest) -> bool:
    if before.shape != after.shape or before.requires_grad != after.requires_grad:
        return False
    # A wider type has other bytes; ``model.parameter_values`` compares the values.
    return before.sha256 == after.sha256 or before.dtype != after.dtype


def losses(trials: Trials) -> str:
    """Compare the losses read back at the fences with the reference's losses, same seed."""
    seen = []
    for precision, run in trials.finished():
        honest = _losses(trials.reference(run.record.config.warmup_steps))
        at_once, worst = tolerance(precision.bits), 0.0
        later = at_once * (_UNDERFLOWING if precision.underflows else 1)
        limit = at_once
        for step, loss in _losses(run).items():
            if not math.isfinite(loss):
                raise CheckError(f"{precision.name}: the loss is {loss} after {step} steps")
            difference = abs(loss / honest[step] - 1) if step in honest else 0.0
            worst = max(worst, difference)
            if difference > limit:
                raise CheckError(
                    f"{precision.name}: after {step} steps the loss is {loss:.6f}, the reference's "
                    f"{honest[step]:.6f}: they differ by {difference:.1e}, and {precision.bits} "
                    f"bits explain {limit:.1e}; the model does not compute the same function"
                )
            limit = later
        seen.append(f"{precision.name} within {worst:.1e} (limit {limit:.1e})")
    return ", ".join(seen)


def tolerance(bits: int) -> float:
    """Return the relative tolerance of a loss in ``bits`` against the reference's loss."""
    significant = next(digits for least, digits in _SIGNIFICANT if bits >= least)
    return max(_ORDER_OF_SUMMATION, 4 * 2.0**-significant)


def _losses(run: Finished) -> dict[int, float]:
    """Return steps done -> loss, from the evidence (safetensors, read without torch)."""
    data = (run.path / evidence.path(0, evidence.FENCES)).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8 : 8 + length])["loss"]["data_offsets"]
    values = struct.unpack_from(f"<{(end - begin) // 4}f", data, 8 + length + begin)
    return dict(zip(run.record.timing.repeats[0].fence_steps, values, strict=False))


def ceiling(trials: Trials) -> str:
    """Check for ceilings in the record; without ceilings, find the reason in the log."""
    said = []
    for precision, run in trials.finished():
        ceilings = run.record.ceilings
        if ceilings is None:
            log = (run.path / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
            why = next((line for line in log if "ceiling was not measured" in line), "log.txt: why")
            raise CheckError(f"{precision.name}: {why}")
        said.append(f"{precision.name} {ceilings.before.flops_per_second / 1e12:.3f} TFLOP/s")
    return ", ".join(said)


def figures(trials: Trials) -> str:
    """Check peak memory and energy in the record."""
    said = []
    for precision, run in trials.finished():
        result = run.record.result
        if result.peak_memory_bytes is not None and result.peak_memory_bytes <= 0:
            raise CheckError(f"{precision.name}: peak memory is {result.peak_memory_bytes} bytes")
        if result.energy is not None and result.energy.joules <= 0:
            raise CheckError(f"{precision.name}: the window took {result.energy.joules} J")
        memory = result.peak_memory_bytes and f"{result.peak_memory_bytes / 1e9:.2f} GB"
        joules = result.energy and f"{result.energy.joules:.1f} J"
        said.append(f"{precision.name} {memory or 'memory unknown'}, {joules or 'energy unknown'}")
    return "; ".join(said)
