"""What ``llmb node`` found on one node: every step, device by device, and a plain yes or no."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from llmb.config import Frozen

SCHEMA: Literal["llmb.node/1"] = "llmb.node/1"

StepName = Literal["doctor", "ceilings", "collectives", "alone", "together", "ddp"]
#: "left out": there is nothing to do with one device.
StepStatus = Literal["done", "failed", "left out"]
#: "send_receive": each rank sends to the next one and receives from the one before.
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive"]


class CollectiveRate(Frozen):
    """How fast all ranks together carry out one collective of one size."""

    kind: CollectiveKind
    #: Of the whole: what an all-gather ends with, what a reduce-scatter begins with; of a message.
    bytes: int = Field(ge=1)
    #: Mean of a row of calls, of the slowest rank.
    seconds: float = Field(gt=0)
    #: What a link carries, comparable between collectives and numbers of ranks.
    bus_bytes_per_second: float


class NodeStep(Frozen):
    """How one step of the examination ended."""

    name: StepName
    status: StepStatus
    seconds: float
    #: Why it failed or was left out; of a step that is done, what to know of it.
    messages: tuple[str, ...] = ()


class DeviceCeiling(Frozen):
    """What a device attains with nothing else going on."""

    #: Highest rate of any matrix product, in FLOP/s.
    product_flops_per_second: float
    #: That over the datasheet's peak, None where none is known.
    of_datasheet: float | None
    memory_bytes_per_second: float


class Speed(Frozen):
    """The figures of one run; its directory lies in ``run``, below the report's folder."""

    run: str
    tokens_per_second: float
    ci95: tuple[float, float] | None
    #: FLOP/s of the model over the datasheet's peak (MFU), and over what its products attain here.
    of_datasheet: float | None
    of_ceiling: float | None


class NodeDevice(Frozen):
    """One device of the node, None for what was not measured."""

    index: int
    name: str
    description: str | None
    ceiling: DeviceCeiling | None = None
    alone: Speed | None = None
    #: While all other devices were at work as well, each by itself.
    together: Speed | None = None


class Limits(Frozen):
    """Shares below which something is not as it should be."""

    #: Of a device in the median of the others; of the node in a submission of the same device.
    device: float
    #: Of a device's speed beside the others in its speed alone.
    together: float
    #: Of all devices as ranks of one run in all devices side by side.
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
        """The device's part of what the others have."""
        return self.value / self.others


class Nearest(Frozen):
    """The submission of the same device whose run is most like this node's."""

    path: str
    submitter: str | None
    system: str | None
    workload: str
    precision: str
    batch_size: int
    devices: int
    tokens_per_second_per_device: float
    #: This node's device over it, None where they did not do the same.
    ratio: float | None
    #: What differs, where they did not.
    differs: tuple[str, ...]


class NodeReport(Frozen):
    """Everything ``llmb node`` found."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

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
    ddp: Speed | None
    #: Throughput of DDP over that of all devices side by side.
    ddp_efficiency: float | None
    outliers: tuple[Outlier, ...]
    nearest: Nearest | None
    verdict: Literal["yes", "no"]
    #: Why not; nothing where the verdict is yes.
    reasons: tuple[str, ...]
