"""AMD devices: torch drives a device through HIP (as ``cuda:0``), amdsmi has energy and clocks."""

from __future__ import annotations

import torch

from llmb.errors import UnavailableError
from llmb.plugin import EnergyReading, Peak
from llmb.plugin.kit.accelerator import Accelerator

from .peaks import peak
from .smi import Smi


class RocmBackend(Accelerator):
    """One AMD device of a ROCm build of torch: a GPU, or a partition shown by HIP."""

    def __init__(self, device: str, *, replays_graphs: bool = False) -> None:
        """Drive ``device``; torch's name is ``cuda:0`` on ROCm, too.

        Raises:
            UnavailableError: torch is not built for ROCm, or finds no such device.
        """
        if torch.version.hip is None:
            raise UnavailableError(
                f"this torch ({torch.__version__}) is not built for ROCm: install a ROCm build"
            )
        if not torch.cuda.is_available():
            raise UnavailableError(
                "torch finds no AMD device: does rocminfo list one, and may you use /dev/kfd?"
            )
        super().__init__(device, replays_graphs=replays_graphs)
        properties = torch.cuda.get_device_properties(self.index)
        self.name: str = properties.name
        #: LLVM's name of the architecture without feature flags, for example "gfx942".
        self.architecture: str = properties.gcnArchName.partition(":")[0]
        #: A GPU and a partition may have the same name: the size tells them apart.
        self.compute_units: int = properties.multi_processor_count
        self.smi = Smi.open(properties)

    def energy(self) -> EnergyReading | None:
        """Return the driver's energy accumulator, None for a device without an accumulator."""
        joules = self.smi.energy_joules()
        if joules is None:
            return None
        return EnergyReading(joules=joules, source="counter", scope=self.smi.scope)

    def telemetry(self) -> dict[str, float]:
        """Return clocks, temperature, power, throttling, and memory in use by all processes."""
        total, free = self.smi.memory()
        used = {} if total is None or free is None else {"memory_used_bytes": float(total - free)}
        return {**self.smi.telemetry(), **used}

    def peak_flops(self, precision: str) -> Peak | None:
        """The datasheet's dense peak, where the part is known."""
        return peak(self.name, precision, self.compute_units)

    def versions(self) -> dict[str, str]:
        """Return the versions of HIP, MIOpen and RCCL used by torch, and amdsmi's facts."""
        found = {"hip": str(torch.version.hip), "architecture": self.architecture}
        # torch calls MIOpen cuDNN and RCCL NCCL on ROCm.
        miopen = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        if miopen is not None:
            found["miopen"] = str(miopen)
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["rccl"] = ".".join(map(str, version))
        return {**found, **self.smi.facts()}
