"""Chooses the size of the fixed model for a run without a named size, and estimates run times."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llmb import clock, workloads
from llmb.config import Mode, RunConfig, RunRequest, is_cpu
from llmb.errors import NotEnoughMemoryError, RunFailedError
from llmb.measure import duration
from llmb.records.run_record import Rates
from llmb.supervision import selection
from llmb.wire.child import Child
from llmb.wire.measurements import MeasuredRates, RatesOrder
from llmb.wire.messages import Offer, Terms
from llmb.workloads import LADDER

_RATES_LIMIT_S = 120.0
#: Default time limit of a run in seconds.
USUAL_WITHIN_S = 600.0
_FITS = "the largest official size that fits into memory"
#: Returns a plugin's terms for a run.
Settle = Callable[[RunConfig], Terms]


@dataclass(frozen=True)
class Estimate:
    """The estimated time of a run, with the inputs of the estimate."""

    seconds: float
    rates: Rates
    start_s: float
    #: Time limit in seconds; None where the user named the size.
    within_s: float | None = None


@dataclass(frozen=True)
class Sized:
    """The chosen run, with notes for the user."""

    config: RunConfig
    estimate: Estimate | None = None
    notes: tuple[str, ...] = ()


def can_be_estimated(config: RunConfig, request: RunRequest) -> bool:
    """Tell whether the time of ``config`` can be estimated from the rates of matrix products.

    Estimates are made for eager training in a single process on a CPU, at official sizes with at
    least the official number of steps, without activation checkpointing and without a search for
    the batch size.
    """
    if config.mode is not Mode.TRAIN or not is_cpu(config.device):
        return False
    sizes = config.definition is None and not config.shape_overrides and not config.dynamic
    official = sizes and config.timed_steps >= config.mode.official_steps
    plain = config.executor == "eager" and config.sac_freq is None
    return (
        official and plain and config.parallelism.world_size == 1 and request.batch_size != "auto"
    )


def choose(offer: Offer, request: RunRequest, settle: Settle) -> Sized:
    """Return the largest size of the ladder that fits and is estimated to end in time.

    If no size is estimated to end in time, return the fastest size. If the time cannot be
    estimated, for example on an accelerator, return the largest size that fits.

    Raises:
        LlmbError: not even the smallest size fits, or the request cannot be run in any size.
    """
    assert request.within_s is not None
    fitting = _ranked(list(_fitting(offer, request)), request)
    if not can_be_estimated(fitting[0], request):
        return Sized(
            fitting[0],
            notes=() if fitting[0].workload == LADDER[0] else (_words(fitting[0], _FITS),),
        )
    rates, start_s = _measured(fitting, settle)
    estimates = [
        Estimate(_seconds(config, rates, start_s), rates, start_s, request.within_s)
        for config in fitting
    ]
    pairs = list(zip(fitting, estimates, strict=True))
    in_time = [pair for pair in pairs if pair[1].seconds <= request.within_s]
    config, estimate = in_time[0] if in_time else min(pairs, key=lambda pair: pair[1].seconds)
    return Sized(config, estimate, (_choice(config, estimate, pairs),))


def estimated(config: RunConfig, settle: Settle) -> Sized:
    """Return ``config``, with a size named by the user, and the estimated time."""
    rates, start_s = _measured([config], settle)
    estimate = Estimate(_seconds(config, rates, start_s), rates, start_s)
    return Sized(config, estimate, (_words(config, f"about {readable(estimate.seconds)}"),))


def _fitting(offer: Offer, request: RunRequest) -> Iterator[RunConfig]:
    """Yield each size, the largest first, in every format in which the size fits.

    Raises:
        NotEnoughMemoryError: no size fits; the message has the need of the smallest size.
    """
    found, smallest = False, None
    for name in LADDER:
        workload = workloads.find(name, {})
        for precision in selection.usual(offer, request):
            sized = {"workload": name, "precision": precision.name}
            try:
                yield selection.resolve(offer, request.model_copy(update=sized), workload)
                found = True
            except NotEnoughMemoryError as error:
                smallest = error
    if not found and smallest is not None:
        raise NotEnoughMemoryError(f"no official size fits, not even the smallest: {smallest}")


def _ranked(fitting: list[RunConfig], request: RunRequest) -> list[RunConfig]:
    """Return ``fitting`` without debug runs of a format that the user did not name.

    Training in FP16 without a loss scale is a debug run, and estimated to end soonest on some
    processors. A plugin that offers no other format keeps this format.
    """
    if request.precision is not None:
        return fitting
    kept = [one for one in fitting if one.mode is not Mode.TRAIN or not one.precision.underflows]
    return kept or fitting


def _measured(configs: Sequence[RunConfig], settle: Settle) -> tuple[Rates, float]:
    """Return the CPU's rates for ``configs``, and the seconds that a process takes to start."""
    dtypes = [name for one in configs for name in duration.needed_dtypes(one.precision)]
    terms = settle(configs[0])
    begin = clock.now_ns()
    with (
        tempfile.TemporaryFile(buffering=0) as log,
        Child("llmb.processes.ceilings", terms.environment, log) as child,
    ):
        start_s = (clock.now_ns() - begin) / 1e9
        child.send(RatesOrder(config=configs[0], dtypes=tuple(dict.fromkeys(dtypes))))
        message = child.receive(_RATES_LIMIT_S)
    if not isinstance(message, MeasuredRates):
        raise RunFailedError("the processor's rates were not measured in two minutes")
    return message.rates, start_s


def _seconds(config: RunConfig, rates: Rates, start_s: float) -> float:
    return duration.estimate_s(workloads.of(config).shape, config, rates, start_s)


def _choice(
    config: RunConfig, estimate: Estimate, sizes: Sequence[tuple[RunConfig, Estimate]]
) -> str:
    """Return a line with the choice, the reason, and ways to a different size."""
    assert estimate.within_s is not None
    limit, time = readable(estimate.within_s), f"about {readable(estimate.seconds)}"
    rung = LADDER.index(config.workload)
    soonest: dict[str, float] = {}
    for other, its in sizes:
        if LADDER.index(other.workload) < rung:
            soonest[other.workload] = min(its.seconds, soonest.get(other.workload, its.seconds))
    ways = [f"--workload {name} would take {readable(s)}" for name, s in soonest.items()]
    if estimate.seconds > estimate.within_s:
        why = f"the soonest of the official sizes, none of which ends within {limit}"
    elif rung:
        why = f"the largest official size that ends within {limit} (--within)"
    else:
        why = "the benchmark itself"
        ways = [f"--workload {LADDER[1]} is smaller"]
    return _words(config, "; ".join([time, why, *ways]))


def _words(config: RunConfig, why: str) -> str:
    return f"{config.workload} in {config.precision.described}: {why}"


def readable(seconds: float) -> str:
    """Return ``seconds`` in readable form, for example "45 s", "8 min" or "1 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{minutes} min" if not hours else f"{hours} h {rest} min" if rest else f"{hours} h"
