"""A missing device or package ends with a single line and exit code 3.

The line comes soon: llmb itself prints a line for a plugin without an answer for a minute.
"""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended

ASKED_FOR = ("--plugin=xla", "--precision=BF16", *harness.TINY_RUN)


def refused(done: Ended, *words: str) -> bool:
    (line,) = done.said
    return done.code == 3 and all(word in line for word in ("xla", *words))


@pytest.mark.parametrize("device", ["xla:1", "xla:99", "xla:x"])
def test_a_device_index_out_of_range(tmp_path: Path, device: str) -> None:
    done = harness.run(tmp_path / "out", *ASKED_FOR, f"--device={device}")
    assert refused(done, repr(device), "numbered from 0")


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_device_of_another_kind(tmp_path: Path, device: str) -> None:
    done = harness.run(tmp_path / "out", *ASKED_FOR, f"--device={device}")
    assert refused(done, repr(device), "'xla'")


@pytest.mark.parametrize("client", ["TPU", "NEURON", "CUDA", "elsewhere", ""])
def test_a_pjrt_device_that_is_not_there(tmp_path: Path, client: str) -> None:
    done = harness.run(tmp_path / "out", *ASKED_FOR, PJRT_DEVICE=client)
    assert refused(done, f"PJRT_DEVICE={client}", "PJRT_DEVICE=CPU")


def test_the_hosts_processor_is_not_taken_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise every machine without an accelerator would train through XLA after the installation.
    monkeypatch.delenv("PJRT_DEVICE")
    done = harness.run(tmp_path / "out", *ASKED_FOR)
    assert refused(done, "no accelerator", "--device xla")


def test_the_hosts_processor_is_taken_when_an_xla_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PJRT_DEVICE")
    done = harness.run(tmp_path / "out", *ASKED_FOR, "--device=xla")
    assert done.code == 0, done.stderr
    assert done.record["system"]["env"]["PJRT_DEVICE"] == "CPU"


@pytest.mark.parametrize("workload", ["litgpt-forward", "litgpt-generation"])
def test_modes_without_training_are_refused_with_the_reason(tmp_path: Path, workload: str) -> None:
    flags = ("--plugin=xla", "--precision=FP32", f"--workload={workload}", "--preset=debug")
    assert refused(harness.run(tmp_path / "out", *flags), "inference mode", "another --plugin")


@pytest.mark.parametrize("precision", ["FP16", "TF32"])
def test_a_format_that_is_refused_with_its_reason(tmp_path: Path, precision: str) -> None:
    flags = ("--plugin=xla", f"--precision={precision}", *harness.TINY_RUN)
    reason = {"FP16": "emulates", "TF32": "GPUs"}[precision]
    assert refused(harness.run(tmp_path / "out", *flags), precision, reason)


@pytest.mark.parametrize(("package", "version"), [("torch", "2.13.0"), ("torch_xla", "2.8.1")])
def test_a_torch_that_torch_xla_was_not_built_for(
    tmp_path: Path, package: str, version: str
) -> None:
    info = tmp_path / "site" / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    done = harness.run(tmp_path / "out", *ASKED_FOR, plugins=[info.parent])
    assert refused(done, version, "needs torch", "pip install torch==2.9.1 torch_xla==2.9.0")


def test_torch_xla_is_not_installed(tmp_path: Path) -> None:
    # The same environment without the library.
    venv.create(tmp_path / "venv", symlinks=True)
    base = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    site = Path(sysconfig.get_path("purelib", vars=base))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("torch_xla", "_XLAC")):
            (site / entry.name).symlink_to(entry)
    python = tmp_path / "venv" / "bin" / Path(sys.executable).name
    command = [str(python), *harness.llmb_command("run", "--quiet", *ASKED_FOR)[1:]]
    done = harness.ended(command, tmp_path / "out", harness.environment(), tmp_path)
    assert refused(done, "torch_xla is not installed", "pip install")
