"""Tiny runs of the real ``llmb run``, one in each native format, read from their directories.

Nothing here holds vendor code: a run is done by the processes that every run is done by.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

from llmb import supervisor
from llmb.config import FP32, Precision, RunRequest
from llmb.errors import LlmbError, RunFailedError
from llmb.measure import clock
from llmb.records import draws, evidence
from llmb.records.evidence import ParameterDigest, WeightsEvidence
from llmb.records.finding import Level, Status
from llmb.records.run_directory import LOG
from llmb.sdk.report import CheckError, SkipError
from llmb.supervision.run_phases import Display
from llmb.supervision.silence import Silence
from llmb.supervisor import Finished
from llmb.wire.messages import Fence, Offer, Phase, Tick

_REFERENCE = "cpu"
#: Significant bits of a product's operands, by the bits of the format; losses may differ by four
#: units in the last of them, and by the order of summation.
_SIGNIFICANT = ((32, 24), (19, 11), (9, 8), (0, 3))
_ORDER_OF_SUMMATION = 1e-4


@dataclass
class Trials:
    """The runs of one plugin, and the reference's beside them, each made when first asked for."""

    request: RunRequest
    offer: Offer
    folder: Path
    display: Display
    #: A worker that is silent for longer is ended.
    limit_s: float
    errors: dict[str, LlmbError] = field(default_factory=dict)
    #: All runs have the same tokens and learning rates.
    nonce: str = field(default_factory=draws.new_nonce)
    _made: dict[str, Finished] = field(default_factory=dict)

    @property
    def formats(self) -> tuple[Precision, ...]:
        """The formats that are tried: the native ones."""
        return tuple(precision for precision in self.offer.precisions if precision.native)

    def results(self) -> list[tuple[Precision, Finished]]:
        """Run in every format; return the runs that came to their end."""
        runs = ((precision, self._run(precision)) for precision in self.formats)
        return [(precision, run) for precision, run in runs if run is not None]

    def finished(self) -> list[tuple[Precision, Finished]]:
        """Return the runs that came to their end.

        Raises:
            SkipError: there is none.
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
        # A device that records its steps compiles them for one learning rate.
        constant = self.offer.lacks.eager_kernels
        same: dict[str, object] = {"nonce": self.nonce, "constant_rate": constant}
        return self.request.model_copy(update={**same, **update})

    def _watched(self, label: str) -> _Watched:
        return _Watched(self.display, label, self.limit_s)


@dataclass
class _Watched:
    """Passes progress on, and loses patience with a worker that says nothing for too long."""

    display: Display
    label: str
    limit_s: float
    _heard_ns: int = field(default_factory=lambda: clock.now_ns())

    def phase(self, name: str) -> None:
        self._heard_ns = clock.now_ns()
        self.display.phase(f"run in {self.label}: {name}")

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        self._heard_ns = clock.now_ns()
        self.display.stream(steps, tokens_per_step, f"run in {self.label}")

    def note(self, text: str) -> None:
        """Notes are for whoever wants the figure of the run."""

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        if isinstance(message, (Phase, Tick, Fence)):
            self._heard_ns = clock.now_ns()
        elif clock.now_ns() - self._heard_ns > self.limit_s * 1e9:
            raise RunFailedError(f"the worker has been silent for {self.limit_s:.0f} s: it hangs")
        self.display.message(message)


def finish(trials: Trials) -> str:
    """Run in every format."""
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
    """Look for broken rules, and for two that every honest run passes."""
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
    """Compare the digests from before and after post-processing, by canonical name."""
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
    # A wider type has other bytes; its values are compared by ``model.parameter_values``.
    return before.sha256 == after.sha256 or before.dtype != after.dtype


def losses(trials: Trials) -> str:
    """Compare the losses read back at the fences with those of the reference, same seed."""
    seen = []
    for precision, run in trials.finished():
        honest = _losses(trials.reference(run.record.config.warmup_steps))
        limit = tolerance(precision.bits)
        worst = 0.0
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
        seen.append(f"{precision.name} within {worst:.1e} (limit {limit:.1e})")
    return ", ".join(seen)


def tolerance(bits: int) -> float:
    """Return by how much a loss in ``bits`` may differ from the reference's, relatively."""
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
    """Look for the ceilings in the record, and for the reason in the log where there are none."""
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
    """Look at peak memory and energy in the record."""
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
