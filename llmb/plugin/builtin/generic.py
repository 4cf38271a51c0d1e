"""The generic plugin: any accelerator ``torch.accelerator`` knows, with nothing vendor-made."""

from __future__ import annotations

import torch

from llmb.config import AUTO_DEVICE, BF16, FP16, FP32, Precision, RunConfig
from llmb.errors import UnavailableError
from llmb.plugin import Device, DeviceMemory, EnergyReading, Peak, hookimpl
from llmb.records.run_record import StepClock

#: torch.distributed's own default pairing of device type and collective library.
_COLLECTIVES = torch.distributed.Backend.default_device_backend_map


class GenericBackend:
    """The accelerator of this torch build, through the device-neutral interface."""

    step_clock: StepClock = "enqueue"

    def __init__(self, device: str) -> None:
        """Drive ``device``, such as ``xyz:0``.

        Raises:
            UnavailableError: this torch has no such accelerator.
        """
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise UnavailableError(f"this torch ({torch.__version__}) sees no accelerator")
        wanted, _, index = device.partition(":")
        if wanted not in (accelerator.type, AUTO_DEVICE):
            raise UnavailableError(f"this torch sees {accelerator.type!r}, not {device!r}")
        self.device_type = accelerator.type
        self.distributed_backend = _COLLECTIVES.get(accelerator.type)
        count = torch.accelerator.device_count()
        if device not in (wanted, *(f"{wanted}:{number}" for number in range(count))):
            raise UnavailableError(
                f"device {device!r}: there are {count} {wanted} devices, numbered from 0"
            )
        self.index = int(index) if index else torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.index)

    def is_available(self) -> bool:
        """Tell whether torch can use the accelerator."""
        return torch.accelerator.is_available()

    def devices(self) -> tuple[Device, ...]:
        """List the accelerator's devices."""
        module = torch.get_device_module(self.device_type)
        names = getattr(module, "get_device_name", lambda index: None)
        return tuple(
            Device(
                name=f"{self.device_type}:{index}",
                description=names(index),
                memory_bytes=self._memory_info(index)[1],
            )
            for index in range(torch.accelerator.device_count())
        )

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.accelerator.synchronize(self.index)

    def step_begin(self) -> None:
        """Nothing to mark."""

    def step_end(self) -> None:
        """Nothing to mark: work goes on while Python runs ahead."""

    def memory(self) -> DeviceMemory:
        """The device's memory, and the peak of torch's allocator."""
        free, total = self._memory_info(self.index)
        try:
            peak = int(torch.accelerator.max_memory_allocated(self.index)) or None
        except Exception:  # an out-of-tree device without an allocator of torch's raises
            peak = None
        return DeviceMemory(total_bytes=total, available_bytes=free, peak_bytes=peak)

    def reset_peak_memory(self) -> None:
        """Start a new peak at the allocator's present use."""
        try:
            torch.accelerator.reset_peak_memory_stats(self.index)
        except Exception:  # as above: then memory() reports no peak either
            return

    def energy(self) -> EnergyReading | None:
        """Torch has no device-neutral energy counter."""
        return None

    def peak_flops(self, precision: str) -> Peak | None:
        """Datasheet peaks are the vendor packages' knowledge."""
        return None

    def versions(self) -> dict[str, str]:
        """Nothing beyond torch itself."""
        return {}

    def _memory_info(self, index: int) -> tuple[int | None, int | None]:
        try:
            free, total = torch.accelerator.get_memory_info(index)
        except Exception:  # not implemented for every device
            return None, None
        return free, total


@hookimpl
def llmb_backend(config: RunConfig) -> GenericBackend:
    """Drive the accelerator of this torch build."""
    return GenericBackend(config.device)


@hookimpl
def llmb_precisions() -> list[Precision]:
    """Offer the plain casts; TF32 is a vendor's switch and therefore a vendor package's format."""
    return [BF16, FP16, FP32]


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Keep FP32 honest: no device may quietly multiply in a narrower format."""
    torch.set_float32_matmul_precision("highest")


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Use torch's fused AdamW kernel where the device has one."""
    accelerator = torch.accelerator.current_accelerator()
    return {"fused": True} if accelerator and _has_fused_adamw(accelerator.type) else {}


def _has_fused_adamw(device_type: str) -> bool:
    # torch's own list names every out-of-tree device, whether it has the kernel or not; without
    # one the step would fail, or move all state to the host and back.
    listed = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
    try:
        key = torch._C._dispatch_key_for_device(device_type)
        own = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adamw_", key)
    except (AttributeError, RuntimeError):  # private names, which may go
        return False
    return own and device_type in listed
