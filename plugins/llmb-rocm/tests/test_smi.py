"""amdsmi as in documentation and public logs (``recorded/``), and amdsmi with errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llmb_rocm import smi
from llmb_rocm.smi import Smi

from tests import needs

RECORDED = Path(__file__).parent / "recorded"


class AmdSmiLibraryException(Exception):  # noqa: N818
    """Named, and put into words, like the library's own class."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(code)
        self.words = f"Error code:\n\t{code} | {words}"

    def __str__(self) -> str:
        return self.words


NOT_SUPPORTED = (2, "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
NOT_LOADED = (34, "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")


class RecordedSmi:
    """An ``amdsmi`` with recorded answers; the handles are the PCI addresses."""

    AmdSmiInitFlags = SimpleNamespace(INIT_AMD_GPUS="INIT_AMD_GPUS")
    AmdSmiMemoryType = SimpleNamespace(VRAM="VRAM")
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(EDGE="EDGE", HOTSPOT="HOTSPOT")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")

    def __init__(self, recording: dict[str, Any]) -> None:
        self.processors: dict[str, dict[str, Any]] = recording["processors"]
        self.first = next(iter(self.processors.values()))

    def amdsmi_init(self, flag: str) -> None:
        assert flag == "INIT_AMD_GPUS"

    def amdsmi_get_processor_handles(self) -> list[str]:
        return list(self.processors)

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def __getattr__(self, name: str) -> Any:
        def answer(handle: str = "", *arguments: str) -> Any:
            known = self.processors.get(handle, {})
            key = " ".join((name, *arguments))
            if key not in known:
                raise AmdSmiLibraryException(*NOT_SUPPORTED)
            return known[key]

        return answer


def properties(address: str) -> SimpleNamespace:
    """torch's properties of the device at this PCI address."""
    domain, bus, device = (int(part, 16) for part in address.partition(".")[0].split(":"))
    return SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device, uuid="")


def opened(library: RecordedSmi, index: int = 0) -> Smi:
    device = Smi.open(properties(list(library.processors)[index]))
    assert device.why_not() is None
    return device


def knows_nothing(device: Smi) -> bool:
    return (device.energy_joules(), device.memory(), device.telemetry()) == (None, (None, None), {})


@pytest.fixture
def replay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecordedSmi:
    library = RecordedSmi(json.loads((RECORDED / f"{request.param}.json").read_text()))
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    return library


def recorded(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("replay", [name], indirect=True)


def test_every_recording_says_where_it_is_from() -> None:
    for path in RECORDED.glob("*.json"):
        assert "not recorded on hardware by us" in json.loads(path.read_text())["source"]


@recorded("mi300x")
def test_the_energy_counter_is_read_in_joules(replay: RecordedSmi) -> None:
    # 4750896266 of 15.3 microjoules each
    assert opened(replay).energy_joules() == pytest.approx(72_688.71, abs=0.01)


@recorded("mi300x")
def test_the_energy_counter_is_read_under_its_older_name_too(replay: RecordedSmi) -> None:
    before = opened(replay).energy_joules()
    count = replay.first["amdsmi_get_energy_count"]
    count["power"] = count.pop("energy_accumulator")
    assert opened(replay).energy_joules() == before


@recorded("mi300x")
def test_gauges_come_in_the_units_of_their_names(replay: RecordedSmi) -> None:
    assert opened(replay).telemetry() == {
        "clock_mhz": 2105,
        "memory_clock_mhz": 900,
        "temperature_c": 39,
        "power_w": 717,
    }


@recorded("rx6600")
def test_the_average_power_is_read_where_the_current_one_is_not_available(
    replay: RecordedSmi,
) -> None:
    assert opened(replay).telemetry()["power_w"] == 6


@recorded("rx6600")
def test_the_edge_s_temperature_is_read_where_there_is_no_hottest_spot(replay: RecordedSmi) -> None:
    assert opened(replay).telemetry()["temperature_c"] == 37
    del replay.first["amdsmi_get_temp_metric HOTSPOT CURRENT"]
    assert opened(replay).telemetry()["temperature_c"] == 36


@recorded("rx6600")
def test_clocks_are_read_under_their_older_name_too(replay: RecordedSmi) -> None:
    replay.first["amdsmi_get_clock_info GFX"] = {"cur_clk": 812, "max_clk": 2750}
    assert opened(replay).telemetry()["clock_mhz"] == 812


@recorded("rx6600")
def test_memory_is_told_in_bytes(replay: RecordedSmi) -> None:
    assert opened(replay).memory() == (8176 * 2**20, 7974 * 2**20)


@recorded("rx6600")
def test_a_counter_that_reads_0_is_no_counter(replay: RecordedSmi) -> None:
    assert opened(replay).energy_joules() is None


@recorded("mi100")
def test_the_mi100_s_counter_is_not_trusted(replay: RecordedSmi) -> None:
    assert replay.first["amdsmi_get_energy_count"]["power"] > 0
    assert opened(replay).energy_joules() is None


@recorded("mi250x")
def test_the_first_die_of_an_mi250x_tells_energy_and_power_of_the_module(
    replay: RecordedSmi,
) -> None:
    die = opened(replay)
    assert die.scope == "package"
    assert die.telemetry()["power_w"] == 144
    assert die.energy_joules() == pytest.approx(124.73, abs=0.01)


@recorded("mi250x")
def test_the_second_die_of_an_mi250x_has_no_power_and_no_energy_rather_than_0(
    replay: RecordedSmi,
) -> None:
    die = opened(replay, index=1)
    assert die.energy_joules() is None
    assert "power_w" not in die.telemetry()
    assert "amd.power_cap_w" not in die.facts()


@recorded("mi300x")
def test_throttling_is_a_counter_that_went_on_since_the_last_reading(replay: RecordedSmi) -> None:
    device = opened(replay)
    counters = replay.first["amdsmi_get_gpu_metrics_info"]
    counters["accumulation_counter"] += 100
    calm = device.telemetry()
    counters["accumulation_counter"] += 100
    counters["ppt_residency_acc"] += 7
    counters["hbm_thm_residency_acc"] += 1
    held_back = device.telemetry()
    assert (calm["throttled"], calm["throttle_reasons"]) == (0.0, 0.0)
    assert (held_back["throttled"], held_back["throttle_reasons"]) == (1.0, float(0x2 | 0x10))


@recorded("mi300x")
def test_without_a_new_sample_nothing_is_said_of_throttling(replay: RecordedSmi) -> None:
    device = opened(replay)
    assert "throttled" not in device.telemetry()


@recorded("mi250x")
@pytest.mark.parametrize(("status", "throttled"), [(True, 1.0), (False, 0.0)])
def test_the_status_word_is_read_before_the_mi300(
    replay: RecordedSmi, status: bool, throttled: float
) -> None:
    replay.first["amdsmi_get_gpu_metrics_info"]["throttle_status"] = status
    readings = opened(replay).telemetry()
    assert readings["throttled"] == throttled
    assert "throttle_reasons" not in readings


@recorded("rx6600")
def test_a_radeon_s_status_word_says_nothing(replay: RecordedSmi) -> None:
    replay.first["amdsmi_get_gpu_metrics_info"]["throttle_status"] = True
    assert "throttled" not in opened(replay).telemetry()


@recorded("mi300x")
def test_facts_are_told_as_text_and_n_a_is_absent(replay: RecordedSmi) -> None:
    assert opened(replay).facts() == {
        "amd.driver": "6.12.12",
        "amd.market_name": "AMD Instinct MI300X",
        "amd.product_name": "AMD Instinct MI300X OAM",
        "amd.compute_units": "304",
        "amd.compute_partition": "SPX",
        "amd.memory_partition": "NPS1",
        "amd.power_cap_w": "750",
        "amd.pcie": "32 GT/s x16 (max Gen5 x16)",
        "amd.topology": "0000:22:00.0: XGMI (weight 15), 0000:38:00.0: XGMI (weight 15)",
    }


@recorded("rx6600")
def test_a_card_without_instinct_features_has_fewer_facts(replay: RecordedSmi) -> None:
    assert opened(replay).facts() == {
        "amd.driver": "7.0.0-3-pve",
        "amd.vbios": "115-D534P00-100",
        "amd.market_name": "Navi 23 [Radeon RX 6600/6600 XT",
        "amd.power_cap_w": "100",
        "amd.max_clock_mhz": "2750",
        "amd.max_memory_clock_mhz": "875",
        "amd.pcie": "16 GT/s x8 (max Gen4 x16)",
    }


@recorded("mi300x")
def test_a_power_cap_in_watts_of_an_older_release_stays_in_watts(replay: RecordedSmi) -> None:
    replay.first["amdsmi_get_power_cap_info"] = {"power_cap": 750}
    assert opened(replay).facts()["amd.power_cap_w"] == "750"


@recorded("mi300x")
@pytest.mark.parametrize("mark", ["N/A", 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, None, True])
def test_a_mark_of_not_supported_is_never_a_number(replay: RecordedSmi, mark: object) -> None:
    replay.first["amdsmi_get_power_info"] = {
        "current_socket_power": mark,
        "average_socket_power": mark,
    }
    replay.first["amdsmi_get_clock_info GFX"] = {"clk": mark}
    replay.first["amdsmi_get_energy_count"]["energy_accumulator"] = mark
    device = opened(replay)
    assert not {"power_w", "clock_mhz"} & device.telemetry().keys()
    assert device.energy_joules() is None


@recorded("mi300x")
def test_any_single_refused_query_costs_only_its_own_fact(replay: RecordedSmi) -> None:
    complete = len(opened(replay).facts()) + len(opened(replay).telemetry())
    for query in list(replay.first):
        answer = replay.first.pop(query)
        device = opened(replay)
        lost = complete - len(device.facts()) - len(device.telemetry())
        assert lost <= 2, query  # market name and compute units come from a single query
        replay.first[query] = answer


@recorded("mi300x")
@pytest.mark.parametrize(
    "uuid",
    [
        "37453846-3745-3230-3736-344532373134",  # the digits' ASCII codes, as torch prints HIP's
        "GPU-7e8f7e20764e2714",
    ],
)
def test_without_a_pci_address_the_serial_number_finds_the_device(
    replay: RecordedSmi, uuid: str
) -> None:
    assert Smi.open(SimpleNamespace(uuid=uuid)).telemetry()["power_w"] == 717


@recorded("mi300x")
def test_the_address_and_not_the_order_decides(replay: RecordedSmi) -> None:
    last = opened(replay, index=2)
    assert last.telemetry() == {}
    assert last.facts() == {}


@recorded("mi300x")
def test_a_partition_shares_energy_and_does_not_know_its_memory(replay: RecordedSmi) -> None:
    replay.processors["0000:0c:00.1"] = {}
    device = opened(replay)
    assert device.scope == "package"
    assert device.energy_joules() is not None
    assert device.memory() == (None, None)


@recorded("mi300x")
def test_a_whole_gpu_s_energy_is_its_own(replay: RecordedSmi) -> None:
    assert opened(replay).scope == "device"


def test_a_missing_library_is_a_fact_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    device = Smi.open(properties("0000:0c:00.0"))
    assert knows_nothing(device)
    assert device.facts()["amdsmi"].startswith("not available: ModuleNotFoundError: ")


def test_a_library_without_its_shared_library_fails_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # amdsmi 7.0.2 without libamd_smi.so: two lines, then a KeyError.
    (tmp_path / "amdsmi.py").write_text("print('Unable to find')\nraise KeyError('libamd_smi.so')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    device = Smi.open(properties("0000:0c:00.0"))
    assert knows_nothing(device)
    assert device.why_not() == "KeyError: 'libamd_smi.so'"
    assert capsys.readouterr() == ("", "")


@recorded("mi300x")
def test_a_library_that_cannot_start_says_why_in_one_line(
    replay: RecordedSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(flag: str) -> None:
        raise AmdSmiLibraryException(*NOT_LOADED)

    monkeypatch.setattr(replay, "amdsmi_init", fail)
    device = Smi.open(properties("0000:0c:00.0"))
    assert knows_nothing(device)
    assert device.facts() == {
        "amdsmi": "not available: AmdSmiLibraryException: Error code: 34 | "
        "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded"
    }


@recorded("rx6600")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (properties("0000:99:00.0"), "torch's device 0000:99:00 is none of the 1 of amdsmi"),
        (SimpleNamespace(uuid="N/A"), "no serial number in 'N/A'"),
        (SimpleNamespace(), "no serial number in ''"),
    ],
)
def test_a_device_that_amdsmi_does_not_know_says_so(
    replay: RecordedSmi, asked: object, reason: str
) -> None:
    device = Smi.open(asked)
    assert knows_nothing(device)
    assert reason in str(device.why_not())


def test_the_installed_library_has_every_function_that_is_called() -> None:
    try:
        interface = needs.module("amdsmi.amdsmi_interface")
        names = set(dir(interface))
    except KeyError:  # no libamd_smi.so: the source can still be read
        package = next(Path(entry) / "amdsmi" for entry in sys.path if _holds_amdsmi(entry))
        source = (package / "amdsmi_interface.py").read_text()
        names = set(re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE))
    called = set(re.findall(r'"(amdsmi_\w+|AmdSmi\w+)"', Path(smi.__file__).read_text()))
    assert called
    assert not called - names


def _holds_amdsmi(entry: str) -> bool:
    return (Path(entry) / "amdsmi" / "amdsmi_interface.py").is_file()
