"""Checks a plugin from outside: starts the processes that hold the plugin, and records outcomes.

Neither vendor code nor torch enters this process. A plugin's crash or hang is only an outcome here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import llmb
from llmb import clock, workloads
from llmb.config import FP32, Precision, RunRequest, idle_waiting
from llmb.errors import LlmbError, RunFailedError, UsageError, did_you_mean
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.sdk import catalogue
from llmb.sdk.catalogue import Check
from llmb.sdk.checks import runs
from llmb.sdk.report import CheckError, CheckReport, Outcome, SkipError
from llmb.supervision import selection
from llmb.supervision.negotiation import Offers, for_children
from llmb.supervision.run_phases import Display, Silent
from llmb.wire.child import Child
from llmb.wire.messages import CheckBegun, Checked, CheckOrder, CheckStatus, Offer

#: Seconds. A check, a phase of a run or a step that takes longer counts as hanging.
LIMIT_S = 300.0
#: Sizes that kernels of real devices accept, and a CPU trains in milliseconds per step.
_SHAPES = {
    "sequence_length": 32,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_TIMED_STEPS = 20
_NOT_REACHED = "not reached"
_SEED = 20_261_121


@dataclass(frozen=True)
class _Settled:
    """The offer process's answer: device, format and variables of the checks; or an error."""

    offer: Offer
    precision: Precision
    environment: dict[str, str]
    error: str | None = None

    @property
    def device(self) -> str | None:
        return self.offer.device if self.offer.available else None


def examine(
    plugin: str,
    *,
    device: str | None = None,
    options: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    display: Display | None = None,
    limit_s: float = LIMIT_S,
) -> CheckReport:
    """Return the outcome of every check of ``plugin``, on ``device`` or the preferred device.

    ``only`` names checks (``device.energy``) or subjects (``device``); empty means all.

    Raises:
        UnavailableError: the plugin is not installed.
        UsageError: ``only`` names no check, or the plugin lacks one of the options.
    """
    checks = _chosen(only)
    found, display = discovery.find(plugin), display or Silent()
    created, begin = clock.utc_now(), clock.now_ns()
    request = RunRequest(
        plugin=plugin,
        plugin_options=dict(options or {}),
        device=device,
        batch_size=2,
        seed=_SEED,
        timed_steps=_TIMED_STEPS,
        shape_overrides=_SHAPES,
    )
    display.phase("asking the plugin")
    in_process, as_runs = (_among(c, checks) for c in (catalogue.IN_PROCESS, catalogue.AS_RUNS))
    with idle_waiting():
        settled = _settle(found, request)
        outcomes = _in_process(request, settled, in_process, display, limit_s)
        early = any(outcome.message.startswith(_NOT_REACHED) for outcome in outcomes)
        outcomes += _as_runs(request, settled, as_runs, display, limit_s, early=early)
    return CheckReport(
        plugin=plugin,
        distribution=found.distribution,
        version=found.version,
        llmb_version=llmb.__version__,
        torch_version=settled.offer.torch_version or None,
        created_utc=created.isoformat().replace("+00:00", "Z"),
        device=settled.device,
        options=request.plugin_options,
        seconds=round((clock.now_ns() - begin) / 1e9, 1),
        outcomes=tuple(outcomes),
    )


def _chosen(only: Sequence[str]) -> frozenset[Check]:
    for wanted in only:
        if not any(wanted in (check.id, check.subject) for check in catalogue.CHECKS):
            subjects = ", ".join(dict.fromkeys(check.subject for check in catalogue.CHECKS))
            near = did_you_mean(wanted, (check.id for check in catalogue.CHECKS))
            raise UsageError(f"there is no check {wanted!r}: name one, or one of {subjects}{near}")
    every = catalogue.CHECKS
    return frozenset(c for c in every if not only or c.id in only or c.subject in only)


def _among(checks: Sequence[Check], chosen: frozenset[Check]) -> tuple[Check, ...]:
    return tuple(check for check in checks if check in chosen)


def _settle(plugin: InstalledPlugin, request: RunRequest) -> _Settled:
    """Ask the plugin's offer process for device, format and variables, as a run does."""
    with Offers([plugin], request) as probes:
        (offer,) = probes.offers
        error = probes.failures.get(plugin.name)
        if isinstance(error, UsageError):
            raise error
        if error is not None:
            return _Settled(offer, FP32, {}, str(error))
        if not offer.available:
            return _Settled(offer, FP32, {})
        workload = workloads.of(request)
        precision = next(iter(offer.precisions), FP32)
        try:
            config = selection.resolve(offer, request, workload)
            terms = probes.settle(plugin.name, for_children(config))
        except LlmbError as failure:
            return _Settled(offer, precision, {}, str(failure))
        return _Settled(offer, config.precision, terms.environment)


def _in_process(
    request: RunRequest,
    settled: _Settled,
    checks: Sequence[Check],
    display: Display,
    limit_s: float,
) -> list[Outcome]:
    """Run the checks that need the plugin in the checker process."""
    if not checks:
        return []
    order = CheckOrder(
        plugin=str(request.plugin),
        request=request,
        device=settled.device,
        reason=None if settled.error else settled.offer.reason,
        precision=settled.precision,
        environment=settled.environment,
        checks=tuple(check.id for check in checks),
    )
    done: dict[str, Outcome] = {}
    current, patience_s = checks[0], LIMIT_S  # the checker first imports torch, without the plugin
    with tempfile.TemporaryFile(buffering=0) as log:
        try:
            with Child("llmb.sdk.checker", settled.environment, log) as child:
                child.send(order)
                while len(done) < len(checks):
                    message = child.receive(patience_s)
                    if message is None:
                        raise RunFailedError(f"it did not come to an end within {patience_s:.0f} s")
                    patience_s = limit_s
                    if isinstance(message, CheckBegun):
                        if message.id == checks[0].id or current.subject != _subject(message.id):
                            display.phase(f"checking: {_subject(message.id)}")
                        current = catalogue.find(message.id)
                    elif isinstance(message, Checked):
                        done[message.id] = _outcome(current, message.status, message.message)
        except LlmbError as error:
            text = f"{error}{_last_words(log)}"
            done[current.id] = _outcome(current, "fail", text)
    reason = f"{_NOT_REACHED}: the process had ended in {current.id} ({current.title})"
    return [done.get(check.id) or _outcome(check, "skip", reason) for check in checks]


def _subject(check_id: str) -> str:
    return catalogue.find(check_id).subject


def _last_words(log: IO[bytes]) -> str:
    """Return the child's last printed line, in brackets."""
    text = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")
    lines = text.strip().splitlines()
    return f" ({lines[-1].strip()})" if lines else ""


def _as_runs(
    request: RunRequest,
    settled: _Settled,
    checks: Sequence[Check],
    display: Display,
    limit_s: float,
    *,
    early: bool,
) -> list[Outcome]:
    """Run the checks that are real runs, unless the checker process ended ``early``."""
    agreed = f"{settled.device}, {settled.precision.name}"
    why_not = None
    if settled.error is not None:
        why_not = "no run was agreed on"
    elif settled.device is None:
        why_not = agreed = f"no device here: {settled.offer.reason}"
    elif early:
        why_not = "not tried: the process that checked the plugin had ended early"
    with tempfile.TemporaryDirectory(prefix="llmb-check-") as folder:
        trials = runs.Trials(request, settled.offer, Path(folder), display, limit_s)
        outcomes = []
        for check in checks:
            if check is catalogue.AGREE:
                status: CheckStatus = "skip" if settled.device is None else "pass"
                status = "fail" if settled.error else status
                outcomes.append(_outcome(check, status, settled.error or agreed))
            elif why_not is not None:
                outcomes.append(_outcome(check, "skip", why_not))
            else:
                outcomes.append(_tried(check, trials))
        return outcomes


def _tried(check: Check, trials: runs.Trials) -> Outcome:
    function: Callable[[runs.Trials], str] = getattr(runs, check.name)
    try:
        return _outcome(check, "pass", function(trials))
    except SkipError as reason:
        return _outcome(check, "skip", str(reason))
    except (CheckError, LlmbError) as error:
        return _outcome(check, "fail", str(error))


def _outcome(check: Check, status: CheckStatus, message: str) -> Outcome:
    return Outcome(id=check.id, title=check.title, status=status, message=message)
