"""NVIDIA devices: torch drives them, NVML tells of memory, energy and clocks."""

from __future__ import annotations

import torch

from llmb.errors import UnavailableError
from llmb.plugin import EnergyReading, Peak
from llmb.plugin.kit.accelerator import Accelerator

from .nvml import Nvml
from .peaks import peak


class CudaBackend(Accelerator):
    """One NVIDIA device of a CUDA build of torch."""

    def __init__(self, device: str, *, replays_graphs: bool = False) -> None:
        """Drive ``device``, such as ``cuda:0``.

        Raises:
            UnavailableError: torch is not built for CUDA, or finds no such device.
        """
        if torch.version.cuda is None:
            raise UnavailableError(
                f"this torch ({torch.__version__}) is not built for CUDA: install a CUDA build"
            )
        if not torch.cuda.is_available():
            raise UnavailableError(
                f"torch finds no NVIDIA device ({_why()}): does nvidia-smi list one?"
            )
        super().__init__(device, replays_graphs=replays_graphs)
        properties = torch.cuda.get_device_properties(self.index)
        self.name: str = properties.name
        self.capability: tuple[int, int] = (properties.major, properties.minor)
        #: A GPU and a share of one may have the same name: their size tells them apart.
        self.multiprocessors: int | None = getattr(properties, "multi_processor_count", None)
        self.nvml = Nvml.open(str(properties.uuid))

    def energy(self) -> EnergyReading | None:
        """The driver's energy counter, on devices that have one (Volta and later)."""
        joules = self.nvml.energy_joules()
        if joules is None:
            return None
        return EnergyReading(joules=joules, source="counter", scope=self.nvml.scope)

    def telemetry(self) -> dict[str, float]:
        """Clocks, temperature, power, throttling, and memory in use by whoever uses it."""
        total, free = self.nvml.memory()
        used = {} if total is None or free is None else {"memory_used_bytes": float(total - free)}
        return {**self.nvml.telemetry(), **used}

    def peak_flops(self, precision: str) -> Peak | None:
        """The datasheet's dense peak, where the part is known; none of a MIG instance.

        No document prints an instance's: its share of the multiprocessors is published, the clock
        at which it computes is not.
        """
        if self.nvml.is_part:
            return None
        return peak(self.name, precision, self.multiprocessors)

    def versions(self) -> dict[str, str]:
        """CUDA, cuDNN, NCCL and Triton as torch uses them, and what NVML tells of the device."""
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        found = {
            "cuda": str(torch.version.cuda),
            "compute_capability": ".".join(map(str, self.capability)),
        }
        if cudnn is not None:
            found["cudnn"] = str(cudnn)
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["nccl"] = ".".join(map(str, version))
        return {**found, **self.nvml.facts()}


def _why() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # RuntimeError or AssertionError, by build and driver
        return (str(error).splitlines() or [type(error).__name__])[0]
    return "the driver lists none"
