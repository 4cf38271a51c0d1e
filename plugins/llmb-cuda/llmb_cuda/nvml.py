"""NVIDIA's management library (NVML, through nvidia-ml-py) for one device of torch.

Every fact is optional. Without the library, without the device, or after a refused query, the fact
is missing. No method raises, and a 0 is always a 0 read from NVML.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

# Numbers of nvml.h, part of the binary interface, which do not change. The constants of
# nvidia-ml-py are avoided, because a missing constant would cost the whole reading.
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_P2P_NVLINK, _P2P_OK = 2, 0
_MAX_LINKS = 36
_ANCESTORS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: NVML's clocks event reasons that are throttling: software power cap (0x4), hardware slowdown
#: (0x8), software (0x20) and hardware (0x40) thermal slowdown, hardware power brake (0x80). Not
#: throttling: idle (0x1), application clocks (0x2), sync boost (0x10), display clocks (0x100),
#: board limit (0x200) and reliability voltage (0x400).
THROTTLING = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class _NvmlHandles:
    """The library and its handles, each fetched once."""

    library: Any
    #: The torch device. A MIG instance has its own handle, None if the instance is unknown.
    device: Any
    #: The GPU of the device, or the GPU that a MIG instance belongs to: has clocks, sensors and
    #: links.
    board: Any
    is_part: bool


class Nvml:
    """The facts of NVML about one device; without a device the object knows only the reason."""

    def __init__(self, opened: _NvmlHandles | None, failure: str | None = None) -> None:
        """Store handles of an initialized library; ``open`` finds the handles."""
        self._opened = opened
        self._failure = failure
        #: The device is a MIG instance, even if NVML cannot tell the instance from its siblings.
        self.is_part = opened is not None and opened.is_part
        #: Owner of the energy and power figures: for a MIG instance the whole GPU.
        self.scope: Literal["device", "package"] = "package" if self.is_part else "device"

    @classmethod
    def open(cls, uuid: str) -> Nvml:
        """Open NVML for the device with this UUID, as torch prints the UUID or with NVML's prefix.

        Indices do not work: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's. The library
        stays initialized until the process ends.
        """
        try:
            return cls(_open(uuid))
        except Exception as error:  # ImportError, NVMLError, AttributeError, OSError, by set-up
            return cls(None, " ".join(f"{type(error).__name__}: {error}".split()))

    def why_not(self) -> str | None:
        """Return the error that made ``open`` fail, None with a device."""
        return self._failure

    def energy_joules(self) -> float | None:
        """Return the joules since the driver was loaded, a hardware counter (Volta and later)."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    def memory(self) -> tuple[int | None, int | None]:
        """Return the device's total and free memory in bytes.

        Both are None for a MIG instance without its own handle: the GPU's memory counts all
        instances together.
        """
        info = None
        if self._opened is not None and self._opened.device is not None:
            info = self._call("nvmlDeviceGetMemoryInfo", self._opened.device)
        return (None, None) if info is None else (int(info.total), int(info.free))

    def telemetry(self) -> dict[str, float]:
        """Read clocks, temperature, power and throttling at present.

        Power is NVML's figure: the present power on GA100 (A100, A30) and older boards, the mean of
        the last second on newer boards. ``throttle_reasons`` is a bit mask; ``throttled`` is 1 if
        the mask has a bit of ``THROTTLING``, else 0.
        """
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._first(
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),  # the name before driver 535
        )
        readings = {
            "clock_mhz": self._ask("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "temperature_c": self._first(
                ("nvmlDeviceGetTemperatureV", _SENSOR_GPU),
                ("nvmlDeviceGetTemperature", _SENSOR_GPU),  # the name before driver 570
            ),
            "power_w": None if milliwatts is None else milliwatts / 1e3,
            "throttled": None if reasons is None else bool(reasons & THROTTLING),
            "throttle_reasons": reasons,
        }
        return {name: float(value) for name, value in readings.items() if value is not None}

    def facts(self) -> dict[str, str]:
        """Return driver, firmware, limits, modes and links as text, without unknown facts."""
        if self._opened is None:
            return {"nvml": f"not available: {self._failure}"}
        cuda = self._call("nvmlSystemGetCudaDriverVersion")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        found = {
            "nvml": self._call("nvmlSystemGetNVMLVersion"),
            "nvidia.driver": self._call("nvmlSystemGetDriverVersion"),
            "nvidia.cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            "nvidia.vbios": self._ask("nvmlDeviceGetVbiosVersion"),
            "nvidia.gsp_firmware": self._ask("nvmlDeviceGetGspFirmwareVersion"),
            "nvidia.power_limit_w": f"{limit / 1e3:g}" if limit else None,
            "nvidia.max_sm_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
            "nvidia.max_memory_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),
            "nvidia.ecc": _switch(self._ask("nvmlDeviceGetEccMode")),
            "nvidia.persistence_mode": _switch(self._ask("nvmlDeviceGetPersistenceMode")),
            "nvidia.mig_mode": _switch(self._ask("nvmlDeviceGetMigMode")),
            "nvidia.pcie": self._pcie(),
            "nvidia.nvlink_active_links": self._active_links(),
            "nvidia.topology": self._topology(),
        }
        return {name: _text(value) for name, value in found.items() if value not in (None, "")}

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the library's answer, None after a refusal or for a missing function."""
        if self._opened is None:
            return None
        try:
            return getattr(self._opened.library, name)(*arguments)
        except Exception:  # NVMLError of any kind, or a release without the function
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return the library's answer about the GPU."""
        return None if self._opened is None else self._call(name, self._opened.board, *arguments)

    def _first(self, *questions: tuple[Any, ...]) -> Any:
        for question in questions:
            answer = self._ask(*question)
            if answer is not None:
                return answer
        return None

    def _pcie(self) -> str | None:
        """Return generation and width of the link to the host, and the maximum if different."""
        now, best = (
            tuple(self._ask(f"nvmlDeviceGet{which}PcieLink{what}") for what in _PCIE)
            for which in ("Curr", "Max")
        )
        if None in now:
            return None
        text = "Gen{} x{}".format(*now)
        return text if None in best or best == now else text + " (max Gen{} x{})".format(*best)

    def _active_links(self) -> int | None:
        """Count the active NVLink links, None for a GPU without NVLink."""
        states = []
        for link in range(_MAX_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", link)
            if state is None:  # an index past the last link is an invalid argument
                break
            states.append(state)
        return sum(state == 1 for state in states) if states else None

    def _topology(self) -> str | None:
        """Return the path to each other GPU in the terms of ``nvidia-smi topo -m``."""
        own = self._ask("nvmlDeviceGetIndex")
        found = []
        for index in range(self._call("nvmlDeviceGetCount") or 0):
            other = None if index == own else self._call("nvmlDeviceGetHandleByIndex", index)
            way = None if own is None or other is None else self._way_to(other)
            if way is not None:
                found.append(f"GPU{index}: {way}")
        return ", ".join(found) or None

    def _way_to(self, other: Any) -> str | None:
        if self._ask("nvmlDeviceGetP2PStatus", other, _P2P_NVLINK) == _P2P_OK:
            # Links to this GPU; 0 if all links go to a switch.
            links = self._links_to(other) or self._active_links()
            return f"NVLink x{links}" if links else "NVLink"
        return _ANCESTORS.get(self._ask("nvmlDeviceGetTopologyCommonAncestor", other))

    def _links_to(self, other: Any) -> int:
        target = getattr(self._call("nvmlDeviceGetPciInfo", other), "busId", None)
        ends = (
            getattr(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", link), "busId", None)
            for link in range(self._active_links() or 0)
        )
        return sum(target is not None and end == target for end in ends)


_PCIE = ("Generation", "Width")


def _open(uuid: str) -> _NvmlHandles:
    library: Any = importlib.import_module("pynvml")
    library.nvmlInit()
    # torch prints the UUID bare; NVML marks GPUs and MIG instances by different prefixes.
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    try:
        device = library.nvmlDeviceGetHandleByUUID(names[0])
    except Exception:
        if len(names) == 1:
            raise
        device = library.nvmlDeviceGetHandleByUUID(names[1])
    if _is_part(library, device):
        board = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        return _NvmlHandles(library, device, board, is_part=True)
    # CUDA's older call for a UUID returns the GPU's UUID for each instance. With MIG on, CUDA
    # computes on instances only.
    if _in_mig_mode(library, device):
        return _NvmlHandles(library, None, device, is_part=True)
    return _NvmlHandles(library, device, device, is_part=False)


def _is_part(library: Any, device: Any) -> bool:
    try:
        return bool(library.nvmlDeviceIsMigDeviceHandle(device))
    except Exception:  # a driver without MIG
        return False


def _in_mig_mode(library: Any, device: Any) -> bool:
    try:
        return _switch(library.nvmlDeviceGetMigMode(device)) == "enabled"
    except Exception:  # a GPU or a driver without MIG
        return False


def _switch(mode: Any) -> str | None:
    """Name a mode; of a pair (present, pending), name the present mode."""
    present = mode[0] if isinstance(mode, (list, tuple)) else mode
    return {0: "disabled", 1: "enabled"}.get(present)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
