"""NVML as in documentation and public logs (``recorded/``), and NVML with errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llmb_cuda import nvml
from llmb_cuda.nvml import Nvml

from tests import needs

RECORDED = Path(__file__).parent / "recorded"
SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
IDLE, APPLICATION_CLOCKS, SYNC_BOOST, DISPLAY_CLOCKS = 0x1, 0x2, 0x10, 0x100


class NVMLError(Exception):
    """Named like the library's own classes: the record contains the names."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    def __str__(self) -> str:
        return "Not Supported"


class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
    def __str__(self) -> str:
        return "Not Found"


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
    def __str__(self) -> str:
        return "Driver Not Loaded"


class RecordedNvml:
    """A ``pynvml`` with recorded answers; the handles are the UUIDs."""

    def __init__(self, recording: dict[str, Any]) -> None:
        self.system: dict[str, Any] = recording["system"]
        self.devices: dict[str, dict[str, Any]] = recording["devices"]
        self.handles_fetched = 0

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.handles_fetched += 1
        if uuid not in self.devices:
            raise NVMLError_NotFound
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self.devices)[index]

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            known = self.devices[arguments[0]] if arguments else self.system
            links = known.get(name)
            if isinstance(links, dict) and "links" in links:
                if arguments[1] >= links["links"]:
                    raise NVMLError_NotSupported
                return wrap(links["each"])
            key = " ".join(map(str, (name, *arguments[1:])))
            if key not in known:
                raise NVMLError_NotSupported
            return wrap(known[key])

        return answer


def wrap(value: Any) -> Any:
    return SimpleNamespace(**value) if isinstance(value, dict) else value


@pytest.fixture
def replay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecordedNvml:
    library = RecordedNvml(json.loads((RECORDED / f"{request.param}.json").read_text()))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def opened(library: RecordedNvml) -> Nvml:
    device = Nvml.open(next(iter(library.devices)))
    assert device.why_not() is None
    return device


def recorded(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("replay", [name], indirect=True)


def test_every_recording_says_where_it_is_from() -> None:
    for path in RECORDED.glob("*.json"):
        assert "not recorded on hardware by us" in json.loads(path.read_text())["source"]


@recorded("a100_under_load")
def test_the_energy_counter_is_read_in_joules(replay: RecordedNvml) -> None:
    assert opened(replay).energy_joules() == pytest.approx(319_159.391)


@recorded("a100_under_load")
def test_gauges_come_in_the_units_of_their_names(replay: RecordedNvml) -> None:
    assert opened(replay).telemetry() == {
        "clock_mhz": 1215.0,
        "memory_clock_mhz": 1215.0,
        "temperature_c": 61.0,
        "power_w": 409.692,
    }


@recorded("a100_under_load")
def test_memory_is_told_in_bytes(replay: RecordedNvml) -> None:
    assert opened(replay).memory() == (40535 * 2**20, 35690 * 2**20)


@recorded("a100_under_load")
def test_torch_s_bare_uuid_finds_the_device(replay: RecordedNvml) -> None:
    assert Nvml.open("34319582-d595-d1c7-d1d2-179bcfa61660").why_not() is None


@recorded("a100_under_load")
def test_the_handle_is_fetched_once_for_many_readings(replay: RecordedNvml) -> None:
    device = opened(replay)
    for _ in range(3):
        device.telemetry()
        device.energy_joules()
    assert replay.handles_fetched == 1


@recorded("gt_1030")
def test_an_old_device_without_energy_counter_has_none_rather_than_0(replay: RecordedNvml) -> None:
    assert opened(replay).energy_joules() is None


@recorded("gt_1030")
def test_what_an_old_driver_refuses_is_absent_and_the_rest_is_there(replay: RecordedNvml) -> None:
    assert opened(replay).telemetry() == {
        "clock_mhz": 1265.0,
        "memory_clock_mhz": 3003.0,
        "temperature_c": 36.0,
        "throttled": 0.0,
        "throttle_reasons": float(IDLE),
    }


@recorded("gt_1030")
def test_facts_are_told_as_text_and_unsupported_modes_are_absent(replay: RecordedNvml) -> None:
    assert opened(replay).facts() == {
        "nvidia.driver": "470.74",
        "nvidia.cuda_driver": "11.4",
        "nvidia.vbios": "86.08.24.00.23",
        "nvidia.power_limit_w": "30",
        "nvidia.max_sm_clock_mhz": "1949",
        "nvidia.max_memory_clock_mhz": "3004",
        "nvidia.persistence_mode": "disabled",
        "nvidia.pcie": "Gen3 x4",
    }


@recorded("gt_1030")
def test_a_link_that_runs_below_its_best_shows_both(replay: RecordedNvml) -> None:
    next(iter(replay.devices.values()))["nvmlDeviceGetCurrPcieLinkGeneration"] = 1
    assert opened(replay).facts()["nvidia.pcie"] == "Gen1 x4 (max Gen3 x4)"


@recorded("a100_mig")
def test_a_mig_instance_has_its_own_memory_and_the_gpu_s_clocks(replay: RecordedNvml) -> None:
    device = Nvml.open("c7384736-a75d-5afc-978f-d2f1294409fd")
    assert device.memory() == (19968 * 2**20, 19955 * 2**20)
    assert device.telemetry()["clock_mhz"] == 1275
    assert device.facts()["nvidia.mig_mode"] == "enabled"


@recorded("a100_mig")
def test_power_of_a_mig_instance_is_that_of_the_package(replay: RecordedNvml) -> None:
    instance, whole = (Nvml.open(uuid) for uuid in replay.devices)
    assert instance.telemetry()["power_w"] == whole.telemetry()["power_w"] == 67.03
    assert instance.scope == "package"


@recorded("a100_mig")
def test_the_uuid_of_a_gpu_in_mig_mode_is_an_unknown_part_of_it(replay: RecordedNvml) -> None:
    # CUDA computes on instances only, and CUDA's older call gives each instance the GPU's UUID.
    found = Nvml.open("513536b6-7d19-9063-b049-1e69664bb298")
    assert found.why_not() is None
    assert (found.is_part, found.scope) == (True, "package")
    assert found.memory() == (None, None)  # NVML tells the whole GPU's 80 GB
    assert found.facts()["nvidia.mig_mode"] == "enabled"


@recorded("a100_mig")
@pytest.mark.parametrize("mode", [[0, 0], [0, 1], None])
def test_a_gpu_that_is_not_in_mig_mode_yet_is_whole(
    replay: RecordedNvml, mode: list[int] | None
) -> None:
    uuid = "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    if mode is None:
        del replay.devices[uuid]["nvmlDeviceGetMigMode"]
    else:
        replay.devices[uuid]["nvmlDeviceGetMigMode"] = mode
    found = Nvml.open(uuid)
    assert (found.is_part, found.scope) == (False, "device")
    assert found.memory()[0] == 80 * 2**30


@recorded("a100_mig")
@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        *((bit, 1.0) for bit in (SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE)),
        *((bit, 0.0) for bit in (0, IDLE, APPLICATION_CLOCKS, SYNC_BOOST, DISPLAY_CLOCKS)),
        (IDLE | SW_POWER_CAP, 1.0),
    ],
)
def test_power_heat_and_slowdown_are_throttling_and_other_reasons_are_not(
    replay: RecordedNvml, reasons: int, throttled: float
) -> None:
    for answers in replay.devices.values():
        answers["nvmlDeviceGetCurrentClocksEventReasons"] = reasons
    readings = opened(replay).telemetry()
    assert (readings["throttled"], readings["throttle_reasons"]) == (throttled, float(reasons))


@recorded("h100_nvswitch")
def test_gpus_behind_a_switch_are_reached_over_all_links(replay: RecordedNvml) -> None:
    facts = opened(replay).facts()
    assert facts["nvidia.nvlink_active_links"] == "18"
    assert facts["nvidia.topology"] == "GPU1: NVLink x18, GPU2: NVLink x18"


@recorded("h100_nvswitch")
def test_bridged_gpus_are_reached_over_the_links_between_them(replay: RecordedNvml) -> None:
    own, other, _ = replay.devices.values()
    other["nvmlDeviceGetPciInfo"] = {"busId": "00000000:C1:00.0"}
    own["nvmlDeviceGetNvLinkRemotePciInfo"] = {"links": 12, "each": {"busId": "00000000:C1:00.0"}}
    assert opened(replay).facts()["nvidia.topology"].startswith("GPU1: NVLink x12, ")


@recorded("h100_nvswitch")
@pytest.mark.parametrize(
    ("level", "way"), [(10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_without_nvlink_the_common_ancestor_is_named(
    replay: RecordedNvml, level: int, way: str
) -> None:
    own, *others = replay.devices
    for other in others:
        del replay.devices[own][f"nvmlDeviceGetP2PStatus {other} 2"]
        replay.devices[own][f"nvmlDeviceGetTopologyCommonAncestor {other}"] = level
    assert opened(replay).facts()["nvidia.topology"] == f"GPU1: {way}, GPU2: {way}"


@recorded("a100_mig")
def test_any_single_refused_query_costs_only_its_own_fact(replay: RecordedNvml) -> None:
    board = replay.devices["GPU-513536b6-7d19-9063-b049-1e69664bb298"]
    complete = len(opened(replay).facts()) + len(opened(replay).telemetry())
    for query in [name for name in board if not name.endswith("IsMigDeviceHandle")]:
        answer = board.pop(query)
        device = opened(replay)
        lost = complete - len(device.facts()) - len(device.telemetry())
        assert lost <= 2, query  # the throttle reasons are two readings of a single query
        board[query] = answer


@recorded("gt_1030")
def test_bytes_of_older_releases_of_the_library_become_text(replay: RecordedNvml) -> None:
    replay.system["nvmlSystemGetDriverVersion"] = b"470.74"
    assert opened(replay).facts()["nvidia.driver"] == "470.74"


def knows_nothing(device: Nvml) -> bool:
    return (device.energy_joules(), device.memory(), device.telemetry()) == (None, (None, None), {})


def test_a_missing_library_is_a_fact_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    device = Nvml.open("34319582-d595-d1c7-d1d2-179bcfa61660")
    assert knows_nothing(device)
    assert device.facts()["nvml"].startswith("not available: ModuleNotFoundError: ")


@recorded("a100_under_load")
def test_a_library_that_cannot_start_says_why(
    replay: RecordedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise NVMLError_DriverNotLoaded

    monkeypatch.setattr(replay, "nvmlInit", fail)
    device = Nvml.open("34319582-d595-d1c7-d1d2-179bcfa61660")
    assert knows_nothing(device)
    assert device.facts() == {"nvml": "not available: NVMLError_DriverNotLoaded: Driver Not Loaded"}


@recorded("a100_under_load")
def test_a_device_that_nvml_does_not_know_says_so(replay: RecordedNvml) -> None:
    device = Nvml.open("00000000-0000-0000-0000-000000000000")
    assert knows_nothing(device)
    assert device.why_not() == "NVMLError_NotFound: Not Found"


def test_the_installed_library_has_every_function_that_is_called() -> None:
    library = needs.module("pynvml")
    source = Path(nvml.__file__).read_text()
    composed = {f"nvmlDeviceGet{w}PcieLink{x}" for w in ("Curr", "Max") for x in nvml._PCIE}
    called = set(re.findall(r"nvml(?:Init|Device\w+|System\w+)", source)) - {"nvmlDeviceGet"}
    assert not {name for name in called | composed if not hasattr(library, name)}


def test_the_clocks_sensors_and_links_written_here_are_those_of_the_installed_library() -> None:
    library = needs.module("pynvml")
    assert library.NVML_CLOCK_SM == nvml._CLOCK_SM
    assert library.NVML_CLOCK_MEM == nvml._CLOCK_MEMORY
    assert library.NVML_TEMPERATURE_GPU == nvml._SENSOR_GPU
    assert library.NVML_P2P_CAPS_INDEX_NVLINK == nvml._P2P_NVLINK


def test_the_reasons_to_throttle_written_here_are_those_of_the_installed_library() -> None:
    library = needs.module("pynvml")
    assert library.nvmlClocksThrottleReasonSwPowerCap == SW_POWER_CAP
    assert library.nvmlClocksThrottleReasonHwSlowdown == HW_SLOWDOWN
    assert library.nvmlClocksThrottleReasonSwThermalSlowdown == SW_THERMAL
    assert library.nvmlClocksThrottleReasonHwThermalSlowdown == HW_THERMAL
    assert library.nvmlClocksThrottleReasonHwPowerBrakeSlowdown == POWER_BRAKE
