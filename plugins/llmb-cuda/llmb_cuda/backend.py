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
        """Drive ``device``, for example ``cuda:0``.

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
        #: A GPU and a MIG instance may have the same name: the size tells them apart.
        self.multiprocessors: int | None = getattr(properties, "multi_processor_count", None)
        self.nvml = Nvml.open(str(properties.uuid))

    def energy(self) -> EnergyReading | None:
        """Return the driver's energy counter, None before Volta."""
        joules = self.nvml.energy_joules()
        if joules is None:
            return None
        return EnergyReading(joules=joules, source="counter", scope=self.nvml.scope)

    def telemetry(self) -> dict[str, float]:
        """Return clocks, temperature, power, throttling, and memory in use by all processes."""
        total, free = self.nvml.memory()
        used = {} if total is None or free is None else {"memory_used_bytes": float(total - free)}
        return {**self.nvml.telemetry(), **used}

    def peak_flops(self, precision: str) -> Peak | None:
        """Return the datasheet's dense peak, None for an unknown part and for a MIG instance.

        No document prints the peak of an instance: the share of the multiprocessors is published,
        the clock is not. Example: 3g of an A100 has 42 of 108 multiprocessors.
        """
        if self.nvml.is_part:
            return None
        return peak(self.name, precision, self.multiprocessors)

    def versions(self) -> dict[str, str]:
        """Return the versions of CUDA, cuDNN, NCCL and Triton used by torch, and NVML's facts."""
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
