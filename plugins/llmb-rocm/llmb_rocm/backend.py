"""AMD devices: torch drives them through HIP (as ``cuda:0``), amdsmi tells of energy and clocks."""

from __future__ import annotations

import torch

from llmb.errors import UnavailableError
from llmb.plugin import EnergyReading, Peak
from llmb.plugin.kit.accelerator import Accelerator

from .peaks import peak
from .smi import Smi


class RocmBackend(Accelerator):
    """One AMD device (a whole GPU, or the part of one that HIP shows) of a ROCm build of torch."""

    def __init__(self, device: str, *, replays_graphs: bool = False) -> None:
        """Drive ``device``; torch's name for it is ``cuda:0`` on ROCm, too.

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
        #: LLVM's name of the architecture, such as "gfx942", without its feature flags.
        self.architecture: str = properties.gcnArchName.partition(":")[0]
        #: A GPU and a part of one may have the same name: their size tells them apart.
        self.compute_units: int = properties.multi_processor_count
        self.smi = Smi.open(properties)

    def energy(self) -> EnergyReading | None:
        """The driver's energy accumulator, where the device has one."""
        joules = self.smi.energy_joules()
        if joules is None:
            return None
        return EnergyReading(joules=joules, source="counter", scope=self.smi.scope)

    def telemetry(self) -> dict[str, float]:
        """Clocks, temperature, power, throttling, and memory in use by whoever uses it."""
        total, free = self.smi.memory()
        used = {} if total is None or free is None else {"memory_used_bytes": float(total - free)}
        return {**self.smi.telemetry(), **used}

    def peak_flops(self, precision: str) -> Peak | None:
        """The datasheet's dense peak, where the part is known."""
        return peak(self.name, precision, self.compute_units)

    def versions(self) -> dict[str, str]:
        """HIP, MIOpen and RCCL as torch uses them, and what amdsmi tells of the device."""
        found = {"hip": str(torch.version.hip), "architecture": self.architecture}
        # torch calls MIOpen cuDNN and RCCL NCCL on ROCm.
        miopen = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        if miopen is not None:
            found["miopen"] = str(miopen)
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["rccl"] = ".".join(map(str, version))
        return {**found, **self.smi.facts()}
