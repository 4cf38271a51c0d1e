"""Plans the examination of a node: the devices, and the run on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb import workloads
from llmb.config import Parallelism, RunConfig, RunRequest, is_cpu
from llmb.errors import NotEnoughMemoryError, UsageError
from llmb.node import judgement
from llmb.node.progress import NodeProgress
from llmb.node.runs import cores_of
from llmb.parallel import checks
from llmb.records.node_report import Limits, NodeDevice
from llmb.records.system import Device
from llmb.submission.bundles import Entry
from llmb.supervision import memory
from llmb.supervision.negotiation import Negotiated, choose, negotiate
from llmb.wire.messages import Offer

#: Ranks on a processor without ``--nproc``; each rank has a share of the cores.
_RANKS_OF_A_PROCESSOR = 2
#: Sequences per micro-batch on an accelerator, halved until the run fits in memory. A search with
#: real runs would take minutes.
_BATCH_SIZES = (8, 4, 2, 1)


@dataclass(frozen=True)
class Seat:
    """One device, and the cores on which the processes of the device run."""

    device: NodeDevice
    #: Value for ``llmb run --device``.
    name: str
    #: Empty: the operating system chooses the cores.
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodePlan:
    """The examination of a node."""

    #: The run of every device, as llmb's request and as command-line arguments.
    request: RunRequest
    arguments: tuple[str, ...]
    negotiated: Negotiated
    seats: tuple[Seat, ...]
    limits: Limits
    #: Target time of all steps together, in seconds.
    seconds: float
    folder: Path
    submissions: tuple[Entry, ...]
    #: The options, and the results from before an interruption.
    progress: NodeProgress

    @property
    def config(self) -> RunConfig:
        """The resolved configuration of a run on one device."""
        return self.negotiated.config

    @property
    def is_debug(self) -> bool:
        """Tell whether the model has other sizes than a published workload."""
        return is_debug(self.request)


def is_debug(request: RunRequest) -> bool:
    """Tell whether ``request`` overrides a workload's sizes, or brings a workload definition."""
    return bool(request.shape_overrides) or request.definition is not None


def is_processor(request: RunRequest) -> bool:
    """Tell whether ``request`` would run on the host's processor.

    Raises:
        LlmbError: no plugin on this machine serves ``request``.
    """
    return is_cpu(choose(request).offer.device)


def settle(request: RunRequest, nproc: int | None) -> tuple[Negotiated, tuple[Seat, ...]]:
    """Return the run of one device, and the first ``nproc`` devices.

    ``nproc`` None: all devices, or two shares of a processor's cores.

    Raises:
        LlmbError: fewer devices exist, or the devices cannot do the run.
    """
    workload = workloads.of(request)
    request = request.model_copy(update={"mode": workloads.mode_of(workload, request.mode)})
    negotiated = negotiate(request, workload)
    if request.batch_size is None:
        negotiated = _sized(negotiated)
    seats = _seats(negotiated, nproc)
    together = {"parallelism": Parallelism(dp_replicate=len(seats))}
    checks.check(request.model_copy(update=together), negotiated.config.mode, workload.shape)
    return negotiated, seats


def limits_of(
    request: RunRequest, device: float | None, together: float | None, efficiency: float | None
) -> Limits:
    """Return the user's limits; None takes the default limit for full or for debug runs."""
    given = {"device": device, "together": together, "efficiency": efficiency}
    usual = judgement.DEBUG if is_debug(request) else judgement.FULL
    return usual.model_copy(update={k: v for k, v in given.items() if v is not None})


def _sized(negotiated: Negotiated) -> Negotiated:
    """Return ``negotiated`` with the largest of ``_BATCH_SIZES`` that fits in memory.

    On a processor the negotiated batch size is kept. Example: micro-batch 4 and ``accumulate`` 2
    make batch size 8.
    """
    config, offer = negotiated.config, negotiated.offer
    if is_cpu(offer.device):
        return negotiated
    workload = workloads.of(config)
    load = memory.Load.of(config, workload)
    for count in _BATCH_SIZES:
        try:
            memory.check_memory(offer, workload, config.precision, count, load)
        except NotEnoughMemoryError:
            continue
        sized = config.model_copy(update={"batch_size": count * config.accumulate})
        return Negotiated(offer, sized, negotiated.terms, negotiated.notes, negotiated.log)
    return negotiated  # the smallest batch size was found to fit


def devices_of(offer: Offer) -> tuple[Device, ...]:
    """Return the plugin's devices; without a list, one device with the offer's name."""
    return offer.devices or (Device(name=offer.device),)


def _seats(negotiated: Negotiated, nproc: int | None) -> tuple[Seat, ...]:
    device, devices = negotiated.config.device, devices_of(negotiated.offer)
    if is_cpu(device) and len(devices) <= 1:
        shares = enumerate(cores_of(nproc or _RANKS_OF_A_PROCESSOR))
        return tuple(Seat(_share(i, cores), device, cores) for i, cores in shares)
    if nproc is not None and nproc > len(devices):
        raise UsageError(f"--nproc {nproc}: there are {len(devices)} {device} devices")
    return tuple(
        Seat(NodeDevice(index=i, name=one.name, description=one.description), one.name)
        for i, one in enumerate(devices[:nproc])
    )


def _share(index: int, cores: Sequence[int]) -> NodeDevice:
    listed = f"cores {', '.join(map(str, cores))}" if cores else None
    return NodeDevice(index=index, name=f"share {index}", description=listed)


def arguments_of(given: Sequence[str], config: RunConfig) -> tuple[str, ...]:
    """Return ``given`` plus the settled plugin and precision, audit off.

    Of an option given twice, the last value counts.
    """
    settled = (f"--plugin={config.plugin}", f"--precision={config.precision.name}")
    return (*given, *settled, "--audit=off")
