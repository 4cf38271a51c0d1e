"""What is to be examined: which devices, with which run on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb import workloads
from llmb.config import Parallelism, RunConfig, RunRequest
from llmb.errors import NotEnoughMemoryError, UsageError
from llmb.node import judgement
from llmb.node.progress import NodeProgress
from llmb.node.runs import cores_of
from llmb.parallel import checks
from llmb.records.node_report import Limits, NodeDevice
from llmb.records.system import Device
from llmb.report.bundles import Entry
from llmb.supervision import memory
from llmb.supervision.memory import is_cpu
from llmb.supervision.negotiation import Negotiated, choose, negotiate
from llmb.wire.messages import Offer

#: Of a processor, where nobody says how many; each has its share of the cores.
_RANKS_OF_A_PROCESSOR = 2
#: Sequences a step on an accelerator, halved until they fit: no search, which takes minutes.
_BATCH_SIZES = (8, 4, 2, 1)


@dataclass(frozen=True)
class Seat:
    """One device, and where its processes run."""

    device: NodeDevice
    #: As ``llmb run --device`` takes it.
    name: str
    #: None where the system places them.
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodePlan:
    """The examination of a node."""

    #: What every device is given, as llmb and as the command line have it.
    request: RunRequest
    arguments: tuple[str, ...]
    negotiated: Negotiated
    seats: tuple[Seat, ...]
    limits: Limits
    #: Seconds that all steps together should take.
    seconds: float
    folder: Path
    submissions: tuple[Entry, ...]
    #: The options, and what was found before an interruption.
    progress: NodeProgress

    @property
    def config(self) -> RunConfig:
        """The run in full, on one of the devices."""
        return self.negotiated.config

    @property
    def is_debug(self) -> bool:
        """Tell whether the shapes are none of a published workload."""
        return is_debug(self.request)


def is_debug(request: RunRequest) -> bool:
    """Tell whether ``request`` is for other shapes than a workload's own."""
    return bool(request.shape_overrides) or request.definition is not None


def is_processor(request: RunRequest) -> bool:
    """Tell whether ``request`` would be run on the host's processor.

    Raises:
        LlmbError: nothing on this machine serves it.
    """
    return is_cpu(choose(request).offer.device)


def settle(request: RunRequest, nproc: int | None) -> tuple[Negotiated, tuple[Seat, ...]]:
    """Return the run of one device, and the first ``nproc`` devices (all, where None).

    Raises:
        LlmbError: there are fewer, or they cannot do it.
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
    """Return the limits asked for, and for the rest those of the size of ``request``."""
    given = {"device": device, "together": together, "efficiency": efficiency}
    usual = judgement.DEBUG if is_debug(request) else judgement.FULL
    return usual.model_copy(update={k: v for k, v in given.items() if v is not None})


def _sized(negotiated: Negotiated) -> Negotiated:
    """Return ``negotiated`` with the largest of the usual batch sizes that fits."""
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
    return negotiated  # the smallest was found to fit


def devices_of(offer: Offer) -> tuple[Device, ...]:
    """Return the plugin's devices: one, where it lists none."""
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
    """Return ``given`` with what was settled beyond it: of equal options the last counts."""
    settled = (f"--plugin={config.plugin}", f"--precision={config.precision.name}")
    return (*given, *settled, "--audit=off")
