"""Impossible runs: a clear line, the documented exit code, and no written file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import needs
from tests.e2e import harness
from tests.e2e.harness import Ended

USAGE, UNAVAILABLE = 2, 3
NAME = "intel_extension_for_pytorch"
DISTRIBUTION = NAME.replace("_", "-")

needs_no_gpu = pytest.mark.skipif(torch.xpu.is_available(), reason="there is an Intel GPU here")


def run(output: Path, *flags: str, site: Path | None = None) -> Ended:
    plugins = [] if site is None else [site]
    return harness.run(output, "--plugin=xpu", *harness.TINY_RUN, *flags, plugins=plugins)


def check(done: Ended, code: int, *words: str) -> None:
    assert done.code == code, done.stderr
    assert len(done.said) == 1, done.stderr
    assert [word for word in words if word not in done.said[0]] == [], done.said
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not done.output.exists() or list(done.output.iterdir()) == []


def with_release(folder: Path, release: str, source: str | None = None) -> Path:
    """Make ``folder`` a site with the extension installed as ``release``."""
    info = folder / f"{NAME}-{release}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release}\n"
    (info / "METADATA").write_text(text)
    if source is not None:
        (folder / NAME).mkdir()
        (folder / NAME / "__init__.py").write_text(source)
    return folder


def without_release(folder: Path) -> Path:
    """Make ``folder`` a site that hides the installed extension from package metadata."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "find = metadata.version\n"
        "def version(name):\n"
        "    if name.replace('_', '-') == 'intel-extension-for-pytorch':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return find(name)\n"
        "metadata.version = version\n"
    )
    return folder


def test_without_the_extension_the_cpu_is_refused_and_the_line_says_what_to_install(
    tmp_path: Path,
) -> None:
    done = run(tmp_path / "out", "--device=cpu", site=without_release(tmp_path / "site"))
    check(done, UNAVAILABLE, "is not installed", "pip install 'llmb-xpu[ipex]'")


@needs_no_gpu
def test_with_neither_gpu_nor_extension_the_line_names_both(tmp_path: Path) -> None:
    done = run(tmp_path / "out", site=without_release(tmp_path / "site"))
    check(done, UNAVAILABLE, "sees no Intel GPU", "driver", "XPU support", "'llmb-xpu[ipex]'")


def test_the_wrong_pair_is_refused_from_metadata_before_anything_is_imported(
    tmp_path: Path,
) -> None:
    source = "raise SystemExit('the extension was imported')"
    site = with_release(tmp_path / "site", "2.7.0", source)
    done = run(tmp_path / "out", "--device=cpu", site=site)
    check(
        done,
        UNAVAILABLE,
        "2.7.0",
        "torch 2.7 only",
        f"torch {torch.__version__}",
        "'llmb-xpu[ipex]'",
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('libfoo.so: cannot open shared object file')", ["OSError", "libfoo.so"]),
        ("import os; os.exit(127)", ["AttributeError", "os"]),
        ("import sys; sys.exit('ERROR! only works on machines with AVX2')", ["SystemExit", "AVX2"]),
    ],
    ids=["library", "exit", "processor"],
)
def test_an_extension_that_cannot_be_imported_is_one_line(
    tmp_path: Path, source: str, words: list[str]
) -> None:
    # For this torch's own release: package metadata already refuses a different release.
    release = ".".join([*torch.__version__.split(".")[:2], "0"])
    site = with_release(tmp_path / "site", release, source)
    done = run(tmp_path / "out", "--device=cpu", site=site)
    check(done, UNAVAILABLE, f"{DISTRIBUTION} {release} cannot be imported", *words)


@needs_no_gpu
@pytest.mark.parametrize("device", ["xpu", "xpu:1"])
def test_without_a_gpu_the_line_says_so_and_what_to_install(tmp_path: Path, device: str) -> None:
    done = run(tmp_path / "out", f"--device={device}")
    check(done, UNAVAILABLE, "sees no Intel GPU", torch.__version__, "driver", "XPU support")


@pytest.mark.parametrize("device", ["cpu:1", "cuda", "cuda:0", "warp"])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, device: str) -> None:
    if device.startswith("cpu"):  # without the extension, the message names the missing extension
        needs.package(NAME)
    check(run(tmp_path / "out", f"--device={device}"), UNAVAILABLE, repr(device))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--device=cpu", "-Oextension=off"], ["extension=off", "--plugin cpu"]),
        (["--device=xpu", "-Oextension=on"], ["extension=on", "--device cpu"]),
        (["--device=cpu", "-Oextension=maybe"], ["maybe", "auto, on, off"]),
        (["--device=cpu", "-Ospeed=11"], ["speed", "extension"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_that_contradict_each_other_are_usage_errors(
    tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    check(run(tmp_path / "out", *flags), USAGE, *words)


@pytest.mark.parametrize("mode", ["blocks", "default"])
def test_compiling_what_the_extension_replaces_is_a_usage_error(tmp_path: Path, mode: str) -> None:
    needs.package(NAME)
    done = run(tmp_path / "out", "--device=cpu", f"-Ocompile={mode}")
    check(done, USAGE, f"compile={mode}", "extension")


@pytest.mark.parametrize(("precision", "words"), [("TF32", ["no CPU"]), ("FP8", ["FP8", "trains"])])
def test_a_format_that_is_not_offered_is_refused_with_the_reason(
    tmp_path: Path, precision: str, words: list[str], bf16_refused: str | None
) -> None:
    done = run(tmp_path / "out", "--device=cpu", f"--precision={precision}")
    offered = "offers BF16, FP32" if bf16_refused is None else "offers FP32"
    check(done, UNAVAILABLE, precision, offered, *words)


def test_float32_weights_under_bf16_are_a_usage_error_that_says_what_to_add(
    tmp_path: Path, bf16_refused: str | None
) -> None:
    if bf16_refused is not None:
        pytest.skip(bf16_refused)
    flags = ("--workload=nemo-bert-base", "--mixed-precision", "--device=cpu", "--precision=BF16")
    done = run(tmp_path / "out", *flags)
    assert (done.code, len(done.said)) == (USAGE, 1), done.stderr
    assert "--no-mixed-precision" in done.said[0]
    assert not done.finished
