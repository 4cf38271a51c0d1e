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

#: The variable that names the PJRT client, and its name of the host's processor.
PJRT_DEVICE, HOST = "PJRT_DEVICE", "CPU"


class XlaBackend:
    """The devices of one PJRT client."""

    device_type = "xla"
    # step_end() does not wait: Python records the next step while the device runs this one.
    step_clock: Literal["host", "device", "enqueue"] = "enqueue"
    distributed_backend = "xla"
    # What a step does is recorded and compiled: nothing in it may differ from step to step.
    lacks = Lacks(eager_kernels=True)

    def __init__(self, device: str) -> None:
        """Start the client for ``device``.

        Raises:
            UnavailableError: torch_xla, its torch or its device is not there.
        """
        named = environment().get(PJRT_DEVICE)  # if none is, torch_xla chooses
        try:
            self._xla = torch_xla()
            self._count = len(self._xla.devices())
        except LlmbError:
            raise
        except Exception as error:  # OSError, ImportError, RuntimeError: every client its own
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
        """Run what is recorded, and wait for it.

        ``sync(wait=True)`` would not do: it waits until the program has been handed over. On the
        host's client it returns after 1 of the 40 ms that a 2048 x 2048 product takes (measured).
        """
        self._xla.sync()
        self._xla.core.xla_model.wait_device_ops()

    @contextmanager
    def full_float32_products(self) -> Iterator[None]:
        """Let products of float32 matrices be full: a TPU's are of BF16 unless it is told.

        What is recorded takes the precision with it when it is compiled, so that a pass has to end
        in here.
        """
        native = self._xla._XLAC
        before = native._xla_get_mat_mul_precision()
        native._xla_set_mat_mul_precision("highest")
        try:
            yield
            self.synchronize()
        finally:
            native._xla_set_mat_mul_precision(before)

    def step_begin(self) -> None:
        """Nothing to mark."""

    def step_end(self) -> None:
        """Cut the graph: the step becomes one program, and is handed to the device."""
        self._xla.sync()

    def memory(self) -> DeviceMemory:
        """Ask the client; on the host's processor, whose memory is the host's, ask the host."""
        if self._host:
            return self._host.memory()
        try:
            info = self._xla.core.xla_model.get_memory_info(self._device)
        except RuntimeError:  # not every client implements it
            return DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)
        total, used = info["bytes_limit"], info["bytes_used"]
        peak = info.get("peak_bytes_used")
        return DeviceMemory(total_bytes=total, available_bytes=total - used, peak_bytes=peak)

    def reset_peak_memory(self) -> None:
        """Reset the host's peak; that of any other client is of the whole process."""
        if self._host:
            self._host.reset_peak_memory()

    def energy(self) -> EnergyReading | None:
        """PJRT has no counter; the host may have one."""
        return self._host.energy() if self._host else None

    def peak_flops(self, precision: str) -> Peak | None:
        """Not known for any client that could be tried."""
        return None

    def versions(self) -> dict[str, str]:
        """torch_xla by version and commit, and the client's platform."""
        version = self._xla.version
        return {
            "torch_xla": f"{version.__version__} ({version.__xla_gitrev__[:12]})",
            "pjrt": f"{client()}: {self._xla._XLAC._xla_get_platform_version()}",
        }


def client() -> str:
    """Return the name of the PJRT client that torch_xla has settled on: CPU, TPU, NEURON, ..."""
    return str(torch_xla().runtime.device_type())
