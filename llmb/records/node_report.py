"""The report of ``llmb node`` on one node: every step, device by device, and a plain yes or no."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen, JsonFile
from llmb.records.interconnect import CollectiveRate, HostLinks

SCHEMA: Literal["llmb.node/1"] = "llmb.node/1"

StepName = Literal["doctor", "ceilings", "collectives", "alone", "together", "ddp"]
#: "left out": the step needs several devices.
StepStatus = Literal["done", "failed", "left out"]


class NodeStep(Frozen):
    """The result of one step of the examination."""

    name: StepName
    status: StepStatus
    seconds: float
    #: Reasons for a failed or left out step; remarks on a step that is done.
    messages: tuple[str, ...] = ()


class DeviceCeiling(Frozen):
    """The peak rates of an otherwise idle device."""

    #: Highest rate of any matrix product, in FLOP/s.
    product_flops_per_second: float
    #: The highest rate over the datasheet's peak, None without a known peak.
    of_datasheet: float | None
    memory_bytes_per_second: float


class Speed(Frozen):
    """The figures of one run; ``run`` is the run's directory, below the report's folder."""

    run: str
    tokens_per_second: float
    ci95: tuple[float, float] | None
    #: FLOP/s of the model over the datasheet's peak (MFU), and over the measured ceiling.
    of_datasheet: float | None
    of_ceiling: float | None


class NodeDevice(Frozen):
    """One device of the node; None for a value that was not measured."""

    index: int
    name: str
    description: str | None
    ceiling: DeviceCeiling | None = None
    alone: Speed | None = None
    #: Speed while all other devices worked as well, each on a run alone.
    together: Speed | None = None


class Limits(Frozen):
    """Ratios below which the report warns of a problem."""

    #: Of a device to the median of the others; of the node to a submission of the same device.
    device: float
    #: Of a device's speed beside busy devices to the device's speed alone.
    together: float
    #: Of all devices as ranks of one run to all devices side by side.
    efficiency: float


class Outlier(Frozen):
    """A device that falls behind the others."""

    device: str
    figure: str
    value: float
    #: Median of the other devices.
    others: float

    @property
    def share(self) -> float:
        """The device's value over the median of the other devices."""
        return self.value / self.others


class Nearest(Frozen):
    """The submission of the same device with the run most similar to this node's run."""

    path: str
    submitter: str | None
    system: str | None
    workload: str
    precision: str
    batch_size: int
    devices: int
    tokens_per_second_per_device: float
    #: Speed of this node's device over the submission's, None if the work differs.
    ratio: float | None
    #: Differences of the work, if any.
    differs: tuple[str, ...]


class NodeReport(JsonFile):
    """The complete report of ``llmb node``."""

    schema_: Literal["llmb.node/1"] = Field(alias="schema", default=SCHEMA)
    created_utc: str
    llmb_version: str
    plugin: str
    precision: str
    workload: str
    #: "debug": shapes that say little of a device's speed.
    size: Literal["full", "debug"]
    batch_size: int
    limits: Limits
    steps: tuple[NodeStep, ...]
    devices: tuple[NodeDevice, ...]
    collectives: tuple[CollectiveRate, ...]
    #: NUMA nodes, devices and network cards; None in reports of before 2026-11-27.
    links: HostLinks | None = None
    ddp: Speed | None
    #: Throughput of DDP over that of all devices side by side.
    ddp_efficiency: float | None
    outliers: tuple[Outlier, ...]
    nearest: Nearest | None
    verdict: Literal["yes", "no"]
    #: Reasons for a "no"; empty if the verdict is yes.
    reasons: tuple[str, ...]
