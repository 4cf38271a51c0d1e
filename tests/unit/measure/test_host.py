"""The host as the record tells of it; what cannot be read is None."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from llmb.measure import host
from llmb.plugin.builtin import host as kernel
from llmb.records.system import Device
from tests.unit.builders_runtime import host_load


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give the kernel files there are; every other cannot be read."""
    there: dict[str, str] = {}
    monkeypatch.setattr(kernel, "read_text", lambda path: there.get(str(path)))
    return there


def test_the_load_is_what_the_kernel_says(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files["/sys/fs/cgroup/cpu.stat"] = "usage_usec 5\nnr_periods 9\nnr_throttled 4\n"
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=2100.5, max=0.0))
    monkeypatch.setattr(psutil, "getloadavg", lambda: (1.239, 9.0, 9.0))
    found = host.load()
    assert found.load_1min == 1.24
    assert found.throttled_periods == 4
    assert found.frequency_mhz == 2100.5


def test_what_the_kernel_does_not_say_is_none_and_not_zero(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    found = host.load()
    assert found.throttled_periods is None
    assert found.frequency_mhz is None


def describe(**changes):
    values = {
        "devices": [Device(name="cpu")],
        "torch_version": "2.13.0",
        "drivers": {"driver": "1.2"},
        "plugin_environment": {},
        "before": host_load(load_1min=0.1),
        "after": host_load(load_1min=0.9),
    }
    return host.describe(**{**values, **changes})


def test_the_system_names_devices_versions_and_load_as_given() -> None:
    found = describe()
    assert found.devices == (Device(name="cpu"),)
    assert (found.torch, found.drivers) == ("2.13.0", {"driver": "1.2"})
    assert (found.load_before.load_1min, found.load_after.load_1min) == (0.1, 0.9)
    assert found.cpu.usable_cores == kernel.usable_cores()
    assert found.memory.total_bytes == kernel.memory_limit_bytes()


def test_the_plugins_variables_are_shown_over_this_process_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_VERBOSE", "0")
    env = describe(plugin_environment={"OMP_NUM_THREADS": "4"}).env
    assert (env["OMP_NUM_THREADS"], env["MKL_VERBOSE"]) == ("4", "0")


def test_secrets_of_the_plugins_environment_do_not_reach_the_record() -> None:
    env = describe(plugin_environment={"TORCH_API_TOKEN": "hunter2", "HOME_ADDRESS": "x"}).env
    assert env["TORCH_API_TOKEN"] == "(redacted)"
    assert "HOME_ADDRESS" not in env


def test_the_cpu_is_called_what_the_kernel_calls_it(files: dict[str, str]) -> None:
    files["/proc/cpuinfo"] = "processor : 0\nmodel name\t: Fast CPU: Model 9\nmodel name\t: other\n"
    assert describe().cpu.model == "Fast CPU: Model 9"


def test_a_maximum_frequency_of_zero_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=1.0, max=0.0))
    assert describe().cpu.max_frequency_mhz is None


def test_the_cgroup_file_that_is_read_is_the_one_linux_has() -> None:
    assert Path("/sys/fs/cgroup") == kernel._CGROUP


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_PCI", tmp_path)
    return tmp_path


def card(bus: Path, address: str, vendor: str, device: str, kind: str) -> None:
    (bus / address).mkdir()
    for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
        (bus / address / name).write_text(f"{value}\n")


def test_display_controllers_and_accelerators_on_the_bus_are_named_by_number(bus: Path) -> None:
    card(bus, "0000:00:01.0", "0x8086", "0x1237", "0x060000")
    card(bus, "0000:00:02.0", "0x1a03", "0x2000", "0x030000")
    card(bus, "0000:00:03.0", "0x10ff", "0x2330", "0x030200")
    card(bus, "0000:00:04.0", "0x1dff", "0x7064", "0x120000")
    (bus / "0000:00:05.0").mkdir()
    assert host.bus_accelerators() == (
        "1a03:2000 class 0300",
        "10ff:2330 class 0302",
        "1dff:7064 class 1200",
    )


def test_a_machine_without_a_bus_has_nothing_on_it(bus: Path) -> None:
    assert host.bus_accelerators() == ()


def test_limits_of_the_container_are_quoted_and_absent_ones_left_out(
    files: dict[str, str],
) -> None:
    files["/sys/fs/cgroup/memory.max"] = "1000"
    files["/sys/fs/cgroup/cpu.max"] = "max 100000"
    assert host.container_limits() == {"memory.max": "1000", "cpu.max": "max 100000"}


def test_free_disk_is_that_of_the_working_and_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free = host.free_disk_bytes()
    assert set(free) == {"working folder", "temporary files"}
    assert all(value is not None and value > 0 for value in free.values())


def test_free_disk_of_a_folder_that_has_gone_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    assert host.free_disk_bytes()["temporary files"] is None


def test_the_cpu_seconds_of_a_process_hold_those_of_its_descendants() -> None:
    burn = "import time; e = time.process_time() + {}\nwhile time.process_time() < e: pass\n"
    inner = burn.format(0.3) + "print(flush=True); time.sleep(600)"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = host.cpu_s_of(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
    assert found is not None
    assert 0.25 <= found < 5.0, "the kernel counts in hundredths, of several processes"


def test_a_process_that_has_gone_has_no_cpu_seconds() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert host.cpu_s_of(process.pid) is None


def test_cores_are_told_apart_from_the_threads_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    cpu = host.describe(
        devices=[],
        torch_version="2.13.0",
        drivers={},
        plugin_environment={},
        before=host_load(),
        after=host_load(),
    ).cpu
    assert (cpu.physical_cores, cpu.logical_cores) == (8, 16)


def test_cpu_seconds_are_user_and_system_of_a_process_and_of_what_it_has_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def cpu_times(self) -> tuple[float, ...]:
            # User, system, both of children that have ended, and waiting for the disk.
            return (1.0, 2.0, 4.0, 8.0, 1000.0)

        def children(self, recursive: bool) -> list[Process]:
            return [Process(2), Process(3)] if recursive else []

    monkeypatch.setattr(psutil, "Process", Process)
    assert host.cpu_s_of(1) == 3 * 15.0


def test_the_guests_time_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(tuple[float, ...]):
        steal, guest, guest_nice = 7.0, 2.0, 1.0

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times((10.0, 20.0, 2.0, 1.0)))
    found = host.load()
    assert (found.steal_s, found.total_cpu_s) == (7.0, 30.0)
