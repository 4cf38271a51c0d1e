"""The host within its container's limits, from kernel files made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from llmb.plugin.builtin import host

GIB = 2**30


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty control-group folder on a machine of 64 GiB, 40 of them available."""
    folder = tmp_path / "cgroup"
    folder.mkdir()
    monkeypatch.setattr(host, "_CGROUP", folder)
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return folder


def write(folder: Path, **files: object) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_a_file_that_cannot_be_read_is_none_and_another_is_stripped(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b" 5 \xff\n")
    assert host.read_text(tmp_path / "missing") is None
    assert host.read_text(tmp_path) is None
    assert host.read_text(tmp_path / "there") == "5 �"


@pytest.mark.parametrize(
    ("limit", "expected"), [(16 * GIB, 16), ("max", 64), (128 * GIB, 64), (None, 64), ("?", 64)]
)
def test_memory_is_the_machines_or_the_containers_where_that_is_less(
    cgroup: Path, limit: object, expected: int
) -> None:
    if limit is not None:
        write(cgroup, memory__max=limit)
    assert host.memory_limit_bytes() == expected * GIB


def test_available_memory_outside_a_container_is_the_machines(cgroup: Path) -> None:
    assert host.available_memory_bytes() == 40 * GIB


def test_available_memory_in_a_container_is_what_its_limit_leaves_plus_page_cache(
    cgroup: Path,
) -> None:
    write(cgroup, memory__max=16 * GIB, memory__current=12 * GIB)
    assert host.available_memory_bytes() == 4 * GIB
    write(cgroup, memory__stat=f"anon {GIB}\nactive_file {2 * GIB}\ninactive_file {3 * GIB}")
    assert host.available_memory_bytes() == 9 * GIB


def test_available_memory_is_never_more_than_the_machine_has(cgroup: Path) -> None:
    write(cgroup, memory__max="max", memory__current=1 * GIB)
    assert host.available_memory_bytes() == 40 * GIB


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 cores with two threads each, all of them allowed."""
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    process = SimpleNamespace(cpu_affinity=lambda: list(range(16)))
    monkeypatch.setattr(psutil, "Process", lambda: process)


@pytest.mark.parametrize(
    ("quota", "cores", "threads"),
    [
        ("max 100000", 16, 8),
        (None, 16, 8),
        ("400000 100000", 4, 2),
        ("350000 100000", 3, 1),
        ("50000 100000", 1, 1),
        ("6400000 100000", 16, 8),
    ],
)
@pytest.mark.usefixtures("sixteen_cores")
def test_cores_and_threads_stay_within_the_containers_quota(
    cgroup: Path, quota: str | None, cores: int, threads: int
) -> None:
    if quota is not None:
        write(cgroup, cpu__max=quota)
    assert host.usable_cores() == cores
    assert host.compute_threads() == threads


@pytest.mark.usefixtures("sixteen_cores")
def test_cores_are_those_the_process_may_run_on(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_affinity=lambda: [0, 1]))
    assert host.usable_cores() == 2


@pytest.mark.usefixtures("sixteen_cores")
def test_without_affinity_every_logical_core_is_usable(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert host.usable_cores() == 16


def kernel_says(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    monkeypatch.setattr(host, "read_text", lambda path: files.get(path.name))


def test_the_peak_is_the_high_water_mark_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_says(monkeypatch, status="Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB")
    assert host.peak_resident_bytes() == 2048 * 1024
    kernel_says(monkeypatch, status="Name:\tpython")
    assert host.peak_resident_bytes() is None
    kernel_says(monkeypatch)
    assert host.peak_resident_bytes() is None


def test_the_out_of_memory_killers_count_is_read_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_says(monkeypatch, vmstat="oom_kill_other 9\noom_kill 3\n")
    assert host.oom_kills() == 3
    kernel_says(monkeypatch, vmstat="pgfault 1")
    assert host.oom_kills() is None


def test_energy_is_the_sum_of_all_packages_in_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_POWERCAP", tmp_path)
    assert host.package_energy_joules() is None
    for zone, counter in (("intel-rapl:0", "1500000"), ("intel-rapl:1", "500000")):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(counter)
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of package 0: not counted twice
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("700000")
    assert host.package_energy_joules() == 2.0


def test_energy_is_not_measured_where_one_package_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_POWERCAP", tmp_path)
    for zone in ("intel-rapl:0", "intel-rapl:1"):
        (tmp_path / zone).mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1500000")
    assert host.package_energy_joules() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512_bf16\n\nflags : other", {"fpu", "avx512_bf16"}),
        ("Features\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("vmx flags : ept\n", set()),
        (None, set()),
    ],
)
def test_the_processors_features_are_those_linux_lists_for_the_first_core(
    monkeypatch: pytest.MonkeyPatch, text: str | None, expected: set[str]
) -> None:
    monkeypatch.setattr(host, "read_text", lambda path: text)
    assert host.cpu_flags() == expected


_KEEPS = """
import psutil
from llmb.plugin.builtin import cpu, host

assert host.keep_freed_memory()
pieces = [bytearray(b"x" * 100_000) for _ in range(1000)]
last = pieces.pop()  # above what is freed, so that the heap does not end before it
pieces.clear()
held = psutil.Process().memory_info().rss
cpu.CpuBackend().reset_peak_memory()
print(held - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_what_was_freed_goes_back_before_a_peak_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KEEPS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 50_000_000
