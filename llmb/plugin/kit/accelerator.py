"""A complete ``Backend`` over ``torch.accelerator``; a vendor's subclass can add its knowledge."""

from __future__ import annotations

from typing import Any

import torch

from llmb.config import AUTO_DEVICE
from llmb.errors import UnavailableError
from llmb.plugin.backend import DeviceMemory, EnergyReading, Peak
from llmb.records.run_record import StepClock
from llmb.records.system import Device


class Accelerator:
    """The accelerator of this torch build. A vendor's class may override any answer."""

    step_clock: StepClock = "enqueue"

    def __init__(self, device: str, *, replays_graphs: bool = False) -> None:
        """Drive ``device``, such as ``xyz:0``; ``auto`` and ``xyz`` mean the present device.

        ``replays_graphs``: torch.compile captures the model's graphs (``surface``).

        Raises:
            UnavailableError: this torch has no accelerator ``device``.
        """
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise UnavailableError(f"this torch ({torch.__version__}) sees no accelerator")
        wanted, _, index = device.partition(":")
        if wanted not in (accelerator.type, AUTO_DEVICE):
            raise UnavailableError(f"this torch sees {accelerator.type!r}, not {device!r}")
        self._replays_graphs = replays_graphs
        self.device_type = accelerator.type
        self.distributed_backend: str | None = collectives_of(accelerator.type)
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
        return tuple(
            Device(
                name=f"{self.device_type}:{index}",
                description=self._ask("get_device_name", index),
                memory_bytes=self._total_bytes(index),
            )
            for index in range(torch.accelerator.device_count())
        )

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.accelerator.synchronize(self.index)

    def step_begin(self) -> None:
        """Let captured graphs reuse the memory of the last step."""
        if self._replays_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def step_end(self) -> None:
        """Mark nothing: work goes on while Python runs ahead."""

    def memory(self) -> DeviceMemory:
        """Return the device's memory, and the peak of torch's allocator."""
        free, total = self._memory_info(self.index)
        peak = self._ask("max_memory_allocated", self.index)
        return DeviceMemory(total_bytes=total, available_bytes=free, peak_bytes=peak or None)

    def reset_peak_memory(self) -> None:
        """Start a new peak at the allocator's present use."""
        self._ask("reset_peak_memory_stats", self.index)

    def energy(self) -> EnergyReading | None:
        """Return None: torch has no device-neutral energy counter."""
        return None

    def peak_flops(self, precision: str) -> Peak | None:
        """Return None: only the vendors' packages know datasheet peaks."""
        return None

    def versions(self) -> dict[str, str]:
        """Return no versions: only torch itself is in use."""
        return {}

    def _total_bytes(self, index: int) -> int | None:
        # Read the device's properties if possible: a query for free memory starts the device, and
        # other people may be using the other devices of the machine.
        total: int | None
        total = getattr(self._ask("get_device_properties", index), "total_memory", None)
        return self._memory_info(index)[1] if total is None else total

    def _memory_info(self, index: int) -> tuple[int | None, int | None]:
        free, total = self._ask("mem_get_info", index) or (None, None)
        return free, total

    def _ask(self, name: str, index: int) -> Any:
        """Return the answer of torch's neutral module, else of the device's own; None if neither.

        An out-of-tree device may lack an allocator of torch, and torch has the neutral memory
        functions only since 2.9.
        """
        neutral = {"mem_get_info": "get_memory_info"}.get(name, name)
        for module, function in ((None, neutral), (self.device_type, name)):
            try:
                holder = torch.get_device_module(module) if module else torch.accelerator
                return getattr(holder, function)(index)
            except Exception:  # missing, not implemented, or an internal assertion
                continue
        return None


def collectives_of(device_type: str) -> str | None:
    """Return torch's default library for collectives between devices of ``device_type``.

    None if torch has no default for the device type, or was built without ``torch.distributed``.
    """
    if not torch.distributed.is_available():
        return None
    library: str | None = torch.distributed.Backend.default_device_backend_map.get(device_type)
    return library


def has_fused_adamw(device_type: str) -> bool:
    """Tell whether torch's fused AdamW kernel runs on ``device_type``."""
    # torch's own list names every out-of-tree device, with the kernel or without; without the
    # kernel the step would fail, or move all state to the host and back.
    listed = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
    try:
        key = torch._C._dispatch_key_for_device(device_type)
        own = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adamw_", key)
    except (AttributeError, RuntimeError):  # torch may remove these private names
        return False
    return own and device_type in listed
