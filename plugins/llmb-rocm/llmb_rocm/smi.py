"""AMD's management library (amdsmi) for one device of torch.

Every fact is optional. Without the library, without the device, or after a refused query or the
answer "N/A", the fact is missing. No method raises, and a 0 is always a 0 read from amdsmi.

Sources: the Python interface of amdsmi 6.0 to 7.0 and its header ``amdsmi.h``; a comment names each
difference between the releases.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from dataclasses import dataclass
from typing import Any, Literal

#: The library's marks of "not supported": the largest number of 16, 32 or 64 bits.
_SENTINELS = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
#: amdsmi_topo_get_link_type: for these two links amdsmi_io_link_type_t (6.x) and amdsmi_link_type_t
#: (7.x) have the same numbers.
_LINKS = {1: "PCIe", 2: "XGMI"}
#: Residency counters of gpu_metrics (MI300 and later): how often the firmware held the clocks back.
#: The order of the counters gives the bits of ``throttle_reasons``.
THROTTLE_COUNTERS = (
    "prochot_residency_acc",  # 0x1: processor hot
    "ppt_residency_acc",  # 0x2: package power
    "socket_thm_residency_acc",  # 0x4: temperature of the socket
    "vr_thm_residency_acc",  # 0x8: temperature of the voltage regulators
    "hbm_thm_residency_acc",  # 0x10: temperature of the memory
)
_TICKS = "accumulation_counter"


@dataclass(frozen=True)
class _SmiHandles:
    """The library and its handles, each fetched once."""

    library: Any
    device: Any
    #: Several processors have the torch device's address: the device is a partition of a GPU.
    is_partition: bool
    #: Market and product name, used by the few special cases below.
    model: str


class Smi:
    """The facts of amdsmi about one device; without a device the object knows only the reason."""

    def __init__(self, opened: _SmiHandles | None, failure: str | None = None) -> None:
        """Store handles of an initialized library; ``open`` finds the handles."""
        self._opened = opened
        self._failure = failure
        #: Owner of the energy and power figures. Partitions share the figures of their GPU; on an
        #: MI250 the first die has the whole module's figures and the second die none.
        self.scope: Literal["device", "package"] = "device"
        if opened is not None and (opened.is_partition or "MI250" in opened.model):
            self.scope = "package"
        self._counters = _counters(self._metrics())

    @classmethod
    def open(cls, properties: object) -> Smi:
        """Open amdsmi for the device with torch's ``properties``.

        Indices do not work: HIP_VISIBLE_DEVICES renumbers torch's devices, not amdsmi's. The method
        compares the PCI address if torch has ``pci_domain_id``, ``pci_bus_id`` and
        ``pci_device_id``, else the serial number from which HIP makes the UUID. torch has no PCI
        function, by which amdsmi numbers partitions: the method opens the first partition. The
        library stays initialized until the process ends.
        """
        try:
            return cls(_open(properties))
        except Exception as error:  # KeyError, ImportError, AmdSmiException, OSError, by set-up
            return cls(None, " ".join(f"{type(error).__name__}: {error}".split()))

    def why_not(self) -> str | None:
        """Return the error that made ``open`` fail, None with a device."""
        return self._failure

    def energy_joules(self) -> float | None:
        """Return the joules since the start or reset of the GPU, from a hardware counter.

        None on an MI100, whose counter stands still on some machines and runs wild on further
        machines (ROCm/amdsmi issues 22 and 38), and for a counter of 0: for example the second die
        of an MI250 and many Radeons have no counter.
        """
        if self._opened is None or "MI100" in self._opened.model:
            return None
        answer = self._ask("amdsmi_get_energy_count")
        # "power" until 6.2, both in 6.3, "energy_accumulator" since.
        count = _number(answer, "energy_accumulator", "power")
        microjoules = _number(answer, "counter_resolution")
        return count * microjoules / 1e6 if count and microjoules else None

    def memory(self) -> tuple[int | None, int | None]:
        """Return the device's total and free memory in bytes.

        None for a partition: the partition used by torch is unknown.
        """
        if self._opened is None or self._opened.is_partition:
            return None, None
        vram = self._member("AmdSmiMemoryType", "VRAM")
        total = _number(self._ask("amdsmi_get_gpu_memory_total", vram))
        used = _number(self._ask("amdsmi_get_gpu_memory_usage", vram))
        if not total:
            return None, None
        return int(total), None if used is None else int(total - used)

    def telemetry(self) -> dict[str, float]:
        """Read clocks, temperature and power at present, and throttling since the last call.

        The temperature is the hottest spot's if available, else the edge's. ``throttle_reasons`` is
        a bit mask in the order of ``THROTTLE_COUNTERS``; ``throttled`` is 1 if the mask has any
        bit, else 0.
        """
        power = self._ask("amdsmi_get_power_info")
        # The first key is for MI300 and later, the second for older devices; the unused key is
        # "N/A".
        watts = _number(power, "current_socket_power") or _number(power, "average_socket_power")
        readings = {
            "clock_mhz": self._clock("GFX", "clk", "cur_clk"),  # cur_clk until 6.1
            "memory_clock_mhz": self._clock("MEM", "clk", "cur_clk"),
            "temperature_c": self._temperature("HOTSPOT") or self._temperature("EDGE"),
            "power_w": watts or None,  # the second die of an MI250 reads 0
            **self._throttling(),
        }
        return {name: value for name, value in readings.items() if value is not None}

    def facts(self) -> dict[str, str]:
        """Return driver, firmware, limits, partitions and links, without unknown facts."""
        if self._opened is None:
            return {"amdsmi": f"not available: {self._failure}"}
        asic = self._ask("amdsmi_get_gpu_asic_info")
        vbios = self._ask("amdsmi_get_gpu_vbios_info")
        version = self._call("amdsmi_get_lib_version")
        found = {
            "amdsmi": _text(version, "build"),
            "amd.driver": _text(self._ask("amdsmi_get_gpu_driver_info"), "driver_version"),
            "amd.vbios": _text(vbios, "part_number") or _text(vbios, "version"),
            "amd.market_name": _text(asic, "market_name"),
            "amd.product_name": _text(self._ask("amdsmi_get_gpu_board_info"), "product_name"),
            "amd.compute_units": _integer(_number(asic, "num_compute_units")),
            "amd.compute_partition": _text(self._ask("amdsmi_get_gpu_compute_partition")),
            "amd.memory_partition": _text(self._ask("amdsmi_get_gpu_memory_partition")),
            "amd.power_cap_w": self._power_cap(),
            "amd.max_clock_mhz": _integer(self._clock("GFX", "max_clk")),
            "amd.max_memory_clock_mhz": _integer(self._clock("MEM", "max_clk")),
            "amd.pcie": self._pcie(),
            "amd.topology": self._topology(),
        }
        return {name: value for name, value in found.items() if value}

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the library's answer, None after a refusal or for a missing function."""
        if self._opened is None:
            return None
        try:
            return getattr(self._opened.library, name)(*arguments)
        except Exception:  # AmdSmiException of any kind, or a release without the function
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return the library's answer about the device."""
        return None if self._opened is None else self._call(name, self._opened.device, *arguments)

    def _member(self, enumeration: str, name: str) -> Any:
        """Return a constant of the library, None if the release lacks the constant."""
        library = None if self._opened is None else self._opened.library
        return getattr(getattr(library, enumeration, None), name, None)

    def _clock(self, kind: str, *keys: str) -> float | None:
        return _number(
            self._ask("amdsmi_get_clock_info", self._member("AmdSmiClkType", kind)), *keys
        )

    def _temperature(self, sensor: str) -> float | None:
        """Read a sensor, in degrees Celsius."""
        return _number(
            self._ask(
                "amdsmi_get_temp_metric",
                self._member("AmdSmiTemperatureType", sensor),
                self._member("AmdSmiTemperatureMetric", "CURRENT"),
            )
        )

    def _metrics(self) -> dict[str, Any]:
        metrics = self._ask("amdsmi_get_gpu_metrics_info")
        return metrics if isinstance(metrics, dict) else {}

    def _throttling(self) -> dict[str, float]:
        """Tell whether a residency counter has grown since the last reading.

        amdsmi_get_violation_status gives the same answer, but sleeps for 100 ms between two
        readings. Before MI300 a status word replaces the counters; amdsmi reduces the word to a
        bool. Radeons have the status word, too, but their firmware never clears the bit of the
        hottest spot (ROCm/rocm-systems issue 11781): for Radeons the word is ignored.
        """
        metrics = self._metrics()
        before, now = self._counters, _counters(metrics)
        self._counters = now
        if _TICKS in now:
            if now[_TICKS] == before.get(_TICKS):  # the firmware has not sampled since
                return {}
            mask = sum(
                1 << bit
                for bit, name in enumerate(THROTTLE_COUNTERS)
                if name in before and now.get(name, 0) > before[name]
            )
            return {"throttled": float(mask > 0), "throttle_reasons": float(mask)}
        if self._opened is None or not re.search(r"MI\d", self._opened.model):
            return {}
        status = metrics.get("throttle_status")
        return {"throttled": float(status)} if isinstance(status, bool) else {}

    def _power_cap(self) -> str | None:
        cap = _number(self._ask("amdsmi_get_power_cap_info"), "power_cap")
        if not cap:
            return None
        # Watts until 6.1.1, microwatts since.
        return f"{cap / 1e6 if cap >= 1e5 else cap:g}"

    def _pcie(self) -> str | None:
        """Return generation and width of the link to the host, and the maximum if different."""
        info = self._ask("amdsmi_get_pcie_info")
        now, best = (
            info.get(part) if isinstance(info, dict) else None
            for part in ("pcie_metric", "pcie_static")
        )
        width, megatransfers = _number(now, "pcie_width"), _number(now, "pcie_speed")
        if not width or not megatransfers:
            return None
        text = f"{megatransfers / 1e3:g} GT/s x{width:g}"
        generation = _number(best, "pcie_interface_version")
        most = _number(best, "max_pcie_width")
        return text if not generation or not most else f"{text} (max Gen{generation:g} x{most:g})"

    def _topology(self) -> str | None:
        """Return the link to each other GPU, by the GPU's PCI address."""
        found = []
        own = self._ask("amdsmi_get_gpu_device_bdf")
        for other in self._call("amdsmi_get_processor_handles") or ():
            address = self._call("amdsmi_get_gpu_device_bdf", other)
            link = None if address == own else self._ask("amdsmi_topo_get_link_type", other)
            kind = _LINKS.get(link.get("type", -1)) if isinstance(link, dict) else None
            if kind is None:
                continue
            weight = _number(self._ask("amdsmi_topo_get_link_weight", other))
            found.append(f"{address}: {kind}" + (f" (weight {weight:g})" if weight else ""))
        return ", ".join(found) or None


def _open(properties: object) -> _SmiHandles:
    # Without the shared library amdsmi prints two lines and fails. Inside ``import torch`` amdsmi
    # was imported in a way that loads the shared library once only; then this import does nothing.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        library: Any = importlib.import_module("amdsmi")
    library.amdsmi_init(library.AmdSmiInitFlags.INIT_AMD_GPUS)
    handles = list(library.amdsmi_get_processor_handles())
    wanted = _address(properties) or _serial(str(getattr(properties, "uuid", "")))
    found = [handle for handle in handles if wanted in _identities(library, handle)]
    if not found:
        raise LookupError(f"torch's device {wanted} is none of the {len(handles)} of amdsmi")
    first = min(found, key=library.amdsmi_get_gpu_device_bdf)
    return _SmiHandles(library, first, is_partition=len(found) > 1, model=_model(library, first))


def _address(properties: object) -> str | None:
    """Return domain, bus and device in amdsmi's notation, None if torch lacks the address."""
    try:
        domain, bus, device = (
            getattr(properties, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")
        )
    except AttributeError:  # an older torch
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _serial(identifier: str) -> str:
    """Return the 16 hexadecimal digits of a serial number, or of HIP's UUID of a serial number.

    HIP stores the digits as text: torch prints the ASCII code of each digit.

    Raises:
        ValueError: ``identifier`` is neither a serial number nor a UUID.
    """
    digits = identifier.lower().removeprefix("0x").removeprefix("gpu-").replace("-", "")
    if len(digits) == 32:
        digits = bytes.fromhex(digits).decode("ascii").lower()
    if not re.fullmatch(r"[0-9a-f]{16}", digits):
        raise ValueError(f"no serial number in {identifier!r}")
    return digits


def _identities(library: Any, handle: Any) -> set[str]:
    """Return PCI address (without the function) and serial number, as far as known."""
    found = set()
    with contextlib.suppress(Exception):
        found.add(library.amdsmi_get_gpu_device_bdf(handle).lower().rpartition(".")[0])
    with contextlib.suppress(Exception):  # ValueError where the serial number is "N/A"
        found.add(_serial(library.amdsmi_get_gpu_asic_info(handle)["asic_serial"]))
    return found


def _model(library: Any, handle: Any) -> str:
    names = []
    for function, key in (
        ("amdsmi_get_gpu_asic_info", "market_name"),
        ("amdsmi_get_gpu_board_info", "product_name"),
    ):
        with contextlib.suppress(Exception):
            names.append(str(getattr(library, function)(handle)[key]))
    return " ".join(names)


def _value(answer: Any, keys: tuple[str, ...]) -> Any:
    """Return the answer itself, or the value of the first present key."""
    if not keys:
        return answer
    if not isinstance(answer, dict):
        return None
    return next((answer[key] for key in keys if key in answer), None)


def _number(answer: Any, *keys: str) -> float | None:
    """Return a number, None for "N/A" and for the library's marks of "not supported"."""
    value = _value(answer, keys)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _SENTINELS:
        return None
    return value


def _counters(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the residency counters of the device, and their number of samples."""
    counters = {name: _number(metrics, name) for name in (*THROTTLE_COUNTERS, _TICKS)}
    return {name: value for name, value in counters.items() if value is not None}


def _integer(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _text(answer: Any, *keys: str) -> str | None:
    """Return a text, None for an empty text and for "N/A"."""
    value = _value(answer, keys)
    if not isinstance(value, str) or value.strip().upper() in ("", "N/A"):
        return None
    return value.strip()
