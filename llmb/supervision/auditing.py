"""The processes that follow a worker: an honest run on the device, then the reference without it.

Each may fail without ending the run: what it would have shown is not observed, which is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from pydantic import ValidationError

from llmb.config import AuditMode, Frozen, RunConfig, idle_waiting
from llmb.errors import LlmbError, RunFailedError
from llmb.measure import clock
from llmb.records import audited, evidence
from llmb.supervision.lacking import host_patience_s, reference_on_device
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.silence import Silence, Vigil
from llmb.supervision.stream import Asked, Streamed
from llmb.wire.channel import Child
from llmb.wire.messages import (
    Done,
    EvidenceFile,
    HonestOrder,
    Message,
    Phase,
    ReferenceOrder,
    Unmade,
)

E = TypeVar("E", bound=Frozen)
#: A calibrator or verifier that says nothing for so long is taken to hang.
_LIMIT_S = 3600.0
#: How often the display may redraw meanwhile.
_IDLE_S = 0.25
_CALIBRATOR, _VERIFIER = "llmb.calibrator", "llmb.verifier"
_HONEST, _REFERENCE = "an honest run on the device", "the reference"


@dataclass(frozen=True)
class Folders:
    """Where a worker leaves evidence, and where whole weights lie while the audit lasts."""

    evidence: Path
    scratch: Path | None


@dataclass(frozen=True)
class Examined:
    """What calibrator and verifier left: evidence by name, and what went wrong."""

    evidence: dict[str, str]
    failures: tuple[str, ...]


class Examiner:
    """Examines one repeat."""

    def __init__(
        self,
        negotiated: Negotiated,
        config: RunConfig,
        folders: Folders,
        log: Callable[[], AbstractContextManager[IO[bytes]]],
        say: Callable[[str], None],
        show: Callable[[Silence | None], None],
        meanwhile: Callable[[], None],
    ) -> None:
        """Read and write in ``folders``; ``show`` what the processes do that say nothing.

        ``meanwhile`` is called once both are there, before they are asked.
        """
        self._negotiated, self._config = negotiated, for_children(config)
        self._folders = folders
        self._log, self._say, self._show, self._meanwhile = log, say, show, meanwhile

    def examine(self, streamed: Streamed) -> Examined:
        """Return what the two processes have shown of a worker that has gone."""
        if streamed.failure is not None:
            return Examined({}, (f"the worker died while being audited: {streamed.failure}",))
        try:
            honest, reference = self._orders(streamed)
        except RunFailedError as error:
            return Examined({}, (str(error),))
        variables = self._negotiated.terms.environment
        self._say(f"computing {_HONEST}")
        # The verifier's imports overlap the calibrator's. It is met before the vendor's code is
        # loaded there, so none can speak in its place, and has its order once that one has gone,
        # so no reference value is ever where vendor code could see it.
        with self._started(_VERIFIER, {}) as verifier:
            with self._started(_CALIBRATOR, variables) as calibrator:
                right = _tried(_REFERENCE, verifier.begin)
                begin, then = calibrator.begin, self._meanwhile
                ask = partial(self._ask, calibrator, honest, audited.BY_CALIBRATOR, _HONEST)
                shown = _tried(_HONEST, begin, then, ask)
            if honest.reference_passes and audited.DEVICE_REFERENCE not in shown.evidence:
                reference = reference.model_copy(update={"passes": honest.passes})
            self._say(f"computing {_REFERENCE}")
            if not right.failures:
                ask = partial(self._ask, verifier, reference, audited.BY_VERIFIER, _REFERENCE)
                right = _tried(_REFERENCE, ask)
        return Examined({**shown.evidence, **right.evidence}, (*shown.failures, *right.failures))

    @contextmanager
    def _started(self, module: str, variables: Mapping[str, str]) -> Iterator[Child]:
        """Give a process that has been started and has yet to introduce itself."""
        with self._log() as log:
            with idle_waiting():  # nothing is timed there, and others may need the cores
                child = Child(module, variables, log)
            try:
                yield child
            finally:
                child.end()

    def _orders(self, streamed: Streamed) -> tuple[HonestOrder, ReferenceOrder]:
        """Return what calibrator and verifier are asked for.

        Raises:
            RunFailedError: the worker has not left what they need.
        """
        probed = self._read(streamed, audited.PROBED, audited.ProbedEvidence)
        steps = self._read(streamed, audited.STEPS, audited.StepsEvidence)
        weights = self._read(streamed, evidence.WEIGHTS, evidence.WeightsEvidence)
        names = self._read(streamed, evidence.NAMESPACE, evidence.NamespaceEvidence)
        _check_asked(streamed, probed, steps)
        kept = next((step for step in steps.steps if step.weights_kept), None)
        passes = (*probed.passes, *(["step"] if kept else []))
        # The probes are of one sequence; a real step has the whole batch.
        heavy: tuple[str, ...] = ()
        if reference_on_device(self._config, self._negotiated.offer.lacks):
            heavy = tuple(p for p in passes if p in ("live", "step"))
        scratch = self._folders.scratch
        assert scratch is not None
        common = {
            "config": self._config,
            "seed": probed.seed,
            "token_seeds": {"live": probed.token_seed}
            | ({"step": kept.token_seed} if kept else {}),
            "step": kept.index if kept else None,
            "evidence_folder": str(self._folders.evidence.resolve()),
            "scratch_folder": str(scratch.resolve()),
            "digests": {**streamed.evidence, **streamed.scratch},
        }
        honest = {
            "passes": passes,
            "borders": self._config.audit is AuditMode.FULL,
            "reference_passes": heavy,
            "library_modules": [m for one in names.libraries for m in one.modules],
        }
        reference = {
            "passes": tuple(name for name in passes if name not in heavy),
            "stored_dtypes": {p.name: p.dtype for p in weights.processed},
        }
        return (
            HonestOrder.model_validate({**common, **honest}),
            ReferenceOrder.model_validate({**common, **reference}),
        )

    def _ask(
        self,
        child: Child,
        order: HonestOrder | ReferenceOrder,
        names: frozenset[str],
        what: str,
    ) -> Examined:
        found, failures = {}, []
        child.send(order)
        lacks = self._negotiated.offer.lacks
        on_host = child.module == _VERIFIER
        vigil = Vigil(
            child,
            "cpu" if on_host else self._config.device,
            None if on_host else lacks.minutes_per_program,
        )
        while not isinstance(message := self._hear(child, vigil), Done):
            if isinstance(message, EvidenceFile) and message.name in names:
                found[message.name] = message.sha256
            elif isinstance(message, Unmade):
                failures.append(f"{message.what} failed: {message.reason}")
            elif isinstance(message, Phase):
                self._say(f"computing {what}: {message.name}")
                vigil.restart()
            else:
                said = "nothing" if message is None else repr(message.kind)
                raise RunFailedError(f"{child.module} said {said} while it worked")
        return Examined(found, tuple(failures))

    def _hear(self, child: Child, vigil: Vigil) -> Message | None:
        """Return the next message, None after an hour without one; show meanwhile what is done.

        The hour is longer where the device's compiler is slow, or the host has much to compute.
        """
        limit_s = self._negotiated.offer.lacks.patience_s(_LIMIT_S)
        limit_s = max(limit_s, host_patience_s(self._config))
        deadline = clock.now_ns() + int(limit_s * 1e9)
        while (message := child.receive(_IDLE_S)) is None and clock.now_ns() < deadline:
            self._show(vigil.moment())
        return message

    def _read(self, streamed: Streamed, name: str, kind: type[E]) -> E:
        if name not in streamed.evidence:
            raise RunFailedError(f"the worker left no {name}")
        try:
            return kind.model_validate_json((self._folders.evidence / name).read_bytes())
        except (OSError, ValidationError) as error:
            raise RunFailedError(f"{name} cannot be read: {error}") from error


def _tried(what: str, *acts: Callable[[], Examined | None]) -> Examined:
    """Return what the last of ``acts`` has found, or that one of them failed."""
    found = None
    try:
        for act in acts:
            found = act()
    except LlmbError as error:
        return Examined({}, (f"{what} failed: {error}",))
    return found or Examined({}, ())


def _check_asked(
    streamed: Streamed, probed: audited.ProbedEvidence, steps: audited.StepsEvidence
) -> None:
    """Hold what a worker says it was asked to look at to what it was asked.

    Raises:
        RunFailedError: it shows other steps, tokens or places.
    """
    shown = {s.index: Asked(s.seed, s.token_seed, last=False) for s in steps.steps}
    shown[probed.last_step] = Asked(probed.seed, probed.token_seed, last=True)
    if shown != dict(streamed.asked):
        raise RunFailedError("the worker shows other steps than those it was asked for")
    if [s.index for s in steps.steps if s.weights_kept] != [s.index for s in steps.steps][-1:]:
        raise RunFailedError("the worker kept other weights than those of the latest audited step")
