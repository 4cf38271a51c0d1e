"""NVIDIA's management library (NVML, by way of nvidia-ml-py) for one device of torch.

Everything here is optional. Without the library, without the device, or where a single query is
refused, the fact is missing; nothing raises and nothing is 0 that was not read as 0.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

# Numbers of nvml.h, which are part of its binary interface and do not change. The constants of
# nvidia-ml-py are avoided, because a missing one would cost the whole reading.
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_P2P_NVLINK, _P2P_OK = 2, 0
_MAX_LINKS = 36
_ANCESTORS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: NVML's clocks event reasons that are throttling: software power cap (0x4), hardware slowdown
#: (0x8), software (0x20) and hardware (0x40) thermal slowdown, hardware power brake (0x80). Idle
#: (0x1), application clocks (0x2), sync boost (0x10), display clocks (0x100), board limit (0x200)
#: and reliability voltage (0x400) are not.
THROTTLING = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class _NvmlHandles:
    """The library and its handles, each fetched once."""

    library: Any
    #: The torch device; a MIG instance has a handle of its own, None where it is not known which.
    device: Any
    #: The GPU that it is, or is a part of: it has the clocks, the sensors and the links.
    board: Any
    is_part: bool


class Nvml:
    """What NVML tells of one device; an object without a device knows nothing and says why."""

    def __init__(self, opened: _NvmlHandles | None, failure: str | None = None) -> None:
        """Wrap handles of an initialized library; ``open`` finds them."""
        self._opened = opened
        self._failure = failure
        #: The device is a MIG instance, be it one that NVML does not tell from its siblings.
        self.is_part = opened is not None and opened.is_part
        #: What energy and power are of: a MIG instance's are those of the GPU it is a part of.
        self.scope: Literal["device", "package"] = "package" if self.is_part else "device"

    @classmethod
    def open(cls, uuid: str) -> Nvml:
        """Open NVML for the device with this UUID, as torch prints it or with NVML's prefix.

        Indices would not do: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's. The
        library stays initialized until the process ends.
        """
        try:
            return cls(_open(uuid))
        except Exception as error:  # ImportError, NVMLError, AttributeError, OSError, by set-up
            return cls(None, " ".join(f"{type(error).__name__}: {error}".split()))

    def why_not(self) -> str | None:
        """Return the error because of which there is no device here, None if there is one."""
        return self._failure

    def energy_joules(self) -> float | None:
        """Return the joules since the driver was loaded, a hardware counter (Volta and later)."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    def memory(self) -> tuple[int | None, int | None]:
        """Return the device's memory in bytes: all of it, and what is free.

        Both are None of a MIG instance without a handle of its own: the GPU's would be those of
        all its instances together.
        """
        info = None
        if self._opened is not None and self._opened.device is not None:
            info = self._call("nvmlDeviceGetMemoryInfo", self._opened.device)
        return (None, None) if info is None else (int(info.total), int(info.free))

    def telemetry(self) -> dict[str, float]:
        """Read clocks, temperature, power and throttling as they are now.

        Power is NVML's: what it is now on GA100 (A100, A30) and older boards, the mean of the last
        second on newer ones. ``throttle_reasons`` is the bit mask of which ``throttled`` (1 or 0)
        says whether it has a bit of ``THROTTLING``.
        """
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._first(
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),  # its name before driver 535
        )
        readings = {
            "clock_mhz": self._ask("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "temperature_c": self._first(
                ("nvmlDeviceGetTemperatureV", _SENSOR_GPU),
                ("nvmlDeviceGetTemperature", _SENSOR_GPU),  # its name before driver 570
            ),
            "power_w": None if milliwatts is None else milliwatts / 1e3,
            "throttled": None if reasons is None else bool(reasons & THROTTLING),
            "throttle_reasons": reasons,
        }
        return {name: float(value) for name, value in readings.items() if value is not None}

    def facts(self) -> dict[str, str]:
        """Return driver, firmware, limits, modes and links as text; what is not told is absent."""
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
        """Return what the library answers, None where it refuses or has no such function."""
        if self._opened is None:
            return None
        try:
            return getattr(self._opened.library, name)(*arguments)
        except Exception:  # NVMLError of any kind, or a release without the function
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return what the library answers about the GPU."""
        return None if self._opened is None else self._call(name, self._opened.board, *arguments)

    def _first(self, *questions: tuple[Any, ...]) -> Any:
        for question in questions:
            answer = self._ask(*question)
            if answer is not None:
                return answer
        return None

    def _pcie(self) -> str | None:
        """Tell generation and width of the link to the host: now, and what it could have."""
        now, best = (
            tuple(self._ask(f"nvmlDeviceGet{which}PcieLink{what}") for what in _PCIE)
            for which in ("Curr", "Max")
        )
        if None in now:
            return None
        text = "Gen{} x{}".format(*now)
        return text if None in best or best == now else text + " (max Gen{} x{})".format(*best)

    def _active_links(self) -> int | None:
        """Count the NVLink links that are up, None for a GPU without NVLink."""
        states = []
        for link in range(_MAX_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", link)
            if state is None:  # one past the last link is an invalid argument
                break
            states.append(state)
        return sum(state == 1 for state in states) if states else None

    def _topology(self) -> str | None:
        """Tell the way to each other GPU in the terms of ``nvidia-smi topo -m``."""
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
            # Links to this one GPU; none of them where all go to a switch.
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
    # CUDA's older call for a UUID answers the GPU's for each instance of it, and where MIG is on,
    # CUDA computes on nothing else than instances.
    if _in_mig_mode(library, device):
        return _NvmlHandles(library, None, device, is_part=True)
    return _NvmlHandles(library, device, device, is_part=False)


def _is_part(library: Any, device: Any) -> bool:
    try:
        return bool(library.nvmlDeviceIsMigDeviceHandle(device))
    except Exception:  # a driver that knows no MIG
        return False


def _in_mig_mode(library: Any, device: Any) -> bool:
    try:
        return _switch(library.nvmlDeviceGetMigMode(device)) == "enabled"
    except Exception:  # a GPU or a driver that knows no MIG
        return False


def _switch(mode: Any) -> str | None:
    """Name a mode; where NVML tells the present and the pending one, the present."""
    present = mode[0] if isinstance(mode, (list, tuple)) else mode
    return {0: "disabled", 1: "enabled"}.get(present)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
