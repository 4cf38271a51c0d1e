"""An XLA device: Python records operations, and nothing runs before the graph is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from llmb.config import AUTO_DEVICE, environment
from llmb.errors import LlmbError, UnavailableError
from llmb.plugin import Device, DeviceMemory, EnergyReading, Lacks, Peak
from llmb.plugin.builtin.cpu import CpuBackend

from .pairing import torch_xla

#: Environment variable with the PJRT client, and the client's name of the host's processor.
PJRT_DEVICE, HOST = "PJRT_DEVICE", "CPU"


class XlaBackend:
    """The devices of one PJRT client."""

    device_type = "xla"
    # step_end() does not wait: Python records the next step while the device runs the step.
    step_clock: Literal["host", "device", "enqueue"] = "enqueue"
    distributed_backend = "xla"
    # A step is recorded and compiled: no program may differ from step to step.
    lacks = Lacks(eager_kernels=True)

    def __init__(self, device: str) -> None:
        """Start the client for ``device``.

        Raises:
            UnavailableError: torch_xla, the matching torch or the device is missing.
        """
        named = environment().get(PJRT_DEVICE)  # if none is, torch_xla chooses
        try:
            self._xla = torch_xla()
            self._count = len(self._xla.devices())
        except LlmbError:
            raise
        except Exception as error:  # OSError, ImportError, RuntimeError: each client has its own
            raise UnavailableError(
                f"{PJRT_DEVICE}={named}: {type(error).__name__}: {str(error).partition('. ')[0]} "
                f"({PJRT_DEVICE}={HOST} works everywhere)"
            ) from error
        self._host = CpuBackend() if client() == HOST else None
        if self._host and named is None and device == AUTO_DEVICE:
            raise UnavailableError(
                "torch_xla finds no accelerator; to run on the host's processor ask for it, "
                f"with --device xla or {PJRT_DEVICE}={HOST}"
            )
        self._device = device if ":" in device else "xla:0"

    def is_available(self) -> bool:
        """Tell whether the client has devices."""
        return self._count > 0

    def devices(self) -> tuple[Device, ...]:
        """List the devices of this process."""
        description = f"{client()} through PJRT"
        total = self.memory().total_bytes
        return tuple(
            Device(name=f"xla:{number}", description=description, memory_bytes=total)
            for number in range(self._count)
        )

    def synchronize(self) -> None:
        """Run the recorded work, and wait for the device.

        ``sync(wait=True)`` does not suffice: the call waits only until the program has been handed
        over. On the host's client the call returns after 1 of the 40 ms of a 2048 x 2048 product
        (measured).
        """
        self._xla.sync()
        self._xla.core.xla_model.wait_device_ops()

    @contextmanager
    def full_float32_products(self) -> Iterator[None]:
        """Compute products of float32 matrices in full: a TPU's default is BF16.

        The precision is fixed at compilation, so a pass must end inside the context.
        """
        native = self._xla._XLAC
        before = native._xla_get_mat_mul_precision()
        native._xla_set_mat_mul_precision("highest")
        try:
            yield
            self.synchronize()
        finally:
            native._xla_set_mat_mul_precision(before)

    def manual_seed(self, seed: int) -> None:
        """Set the seed of the device's generator, of which dropout draws."""
        self._xla.manual_seed(seed)

    def step_begin(self) -> None:
        """Nothing to mark."""

    def step_end(self) -> None:
        """Cut the graph: the step becomes one program for the device."""
        self._xla.sync()

    def memory(self) -> DeviceMemory:
        """Return the client's memory; for the host's processor, the memory of the host."""
        if self._host:
            return self._host.memory()
        try:
            info = self._xla.core.xla_model.get_memory_info(self._device)
        except RuntimeError:  # some clients lack the function
            return DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)
        total, used = info["bytes_limit"], info["bytes_used"]
        peak = info.get("peak_bytes_used")
        return DeviceMemory(total_bytes=total, available_bytes=total - used, peak_bytes=peak)

    def reset_peak_memory(self) -> None:
        """Reset the host's peak; the peak of every further client is of the whole process."""
        if self._host:
            self._host.reset_peak_memory()

    def energy(self) -> EnergyReading | None:
        """Return the host's counter, if any; PJRT has no counter."""
        return self._host.energy() if self._host else None

    def peak_flops(self, precision: str) -> Peak | None:
        """Return None: no client with a published peak could be tried."""
        return None

    def versions(self) -> dict[str, str]:
        """torch_xla by version and commit, and the client's platform."""
        version = self._xla.version
        return {
            "torch_xla": f"{version.__version__} ({version.__xla_gitrev__[:12]})",
            "pjrt": f"{client()}: {self._xla._XLAC._xla_get_platform_version()}",
        }


def client() -> str:
    """Return the name of torch_xla's PJRT client: CPU, TPU, NEURON, ..."""
    return str(torch_xla().runtime.device_type())
