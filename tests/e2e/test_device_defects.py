"""Devices that lack something, as real devices of torch out of tree, in whole runs.

The first six runs are CI's; the others are ``long``: ``tox run -e long``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.e2e import harness
from tests.e2e.harness import Ended

#: A vendor's module: ``LACKS`` and ``METHODS`` are put into the backend.
DEVICE = """
from contextlib import contextmanager
from llmb.config import BF16, FP16, FP32
from llmb.plugin import Lacks, hookimpl
from llmb.plugin.kit.accelerator import Accelerator
import torch

class Backend(Accelerator):
    lacks = Lacks({lacks})
    {methods}

@hookimpl
def llmb_backend(config):
    return Backend(config.device)

@hookimpl
def llmb_precisions():
    return [BF16, FP16, FP32]
"""
#: What a TPU's backend has.
FULL_PRODUCTS = """
    @contextmanager
    def full_float32_products(self):
        before = torch.ops.fakedev.full_products(True)
        try:
            yield
        finally:
            torch.ops.fakedev.full_products(before)
"""
NO_FIGURES = """
    def memory(self):
        raise NotImplementedError("no figures")
"""


def run(
    tmp_path: Path,
    site: Path,
    *flags: str,
    lacks: str = "",
    methods: str = "",
    host_flops: float = 2e13,
    **env: str,
) -> Ended:
    """Run on the fake device with a vendor's package of its own.

    A step of more than ``host_flops`` is left to the device.
    """
    source = DEVICE.format(lacks=lacks, methods=methods)
    folder = harness.plugin(tmp_path / "plugins", "odd", "")
    (folder / "llmb_odd.py").write_text(source)
    code = (
        "from llmb.supervision import lacking\n"
        f"lacking.HOST_FLOPS = {host_flops}\n"
        "from llmb.cli import main; main()"
    )
    output = tmp_path / "out"
    given = ("--plugin=odd", "--device=fakedev:0", "--output-dir", str(output))
    command = [sys.executable, "-c", code, "run", "--quiet", *given, *harness.TINY_RUN, *flags]
    return harness.ended(command, output, harness.environment(folder, site, **env), None)


def findings(done: Ended) -> dict[str, Any]:
    return {finding["id"]: finding for finding in done.record["audit"]["findings"]}


def verdict(done: Ended) -> tuple[int, str]:
    assert done.finished, done.stderr
    return done.code, done.record["audit"]["verdict"]


def passes(done: Ended, name: str) -> set[str]:
    """Return the passes that ``name`` shows, nothing where it was not written."""
    path = done.directory / "evidence/repeat-0" / name
    return {key.split("/")[0] for key in load_file(path)} if path.exists() else set()


ON_DEVICE, ON_HOST = "device-reference.safetensors", "reference.safetensors"


def test_an_honest_run_on_a_device_without_float64_that_says_so_is_consistent(
    tmp_path: Path, fake_site: Path
) -> None:
    done = run(
        *(tmp_path, fake_site, "--precision=FP32"),
        lacks="float64=True, memory_figures=True, minutes_per_program=2",
        methods=NO_FIGURES,
        host_flops=0,
        FAKEDEV_DEFECTS="no_float64,noisy,slow_synchronize",
    )
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert (passes(done, ON_DEVICE), "live" in passes(done, ON_HOST)) == (set(), True)
    lacks = done.record["plugin"]["lacks"]
    assert (lacks["float64"], lacks["memory_figures"], lacks["eager_kernels"]) == (
        True,
        True,
        False,
    )
    assert done.record["result"]["peak_memory_bytes"] is None
    notes = "\n".join(done.record["warnings"])
    assert "fakedev:0 lacks float64: the host computes the reference of whole batches" in notes
    shown = " ".join(harness.call("show", done.directory).stdout.split())
    assert "device lacks float64, memory figures, a quick compiler (about 2 min a program)" in shown


def test_the_reference_of_a_device_with_narrow_products_is_made_with_full_ones(
    tmp_path: Path, fake_site: Path
) -> None:
    # Without full products in the reference E1 and L1 are not observed: the probe ``branches``,
    # which the host computes as well, shows that the device's wider format is none.
    done = run(
        *(tmp_path, fake_site, "--precision=BF16"),
        methods=FULL_PRODUCTS,
        host_flops=0,
        FAKEDEV_DEFECTS="bf16_products,noisy",
    )
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert {"branches", "live"} <= passes(done, ON_DEVICE)
    assert "live" not in passes(done, ON_HOST)


def test_a_cheat_that_declares_everything_lacking_is_found_by_the_host(
    tmp_path: Path, fake_site: Path
) -> None:
    # FP32 is declared, products are in BF16, and no reference is wanted on the device.
    done = run(
        *(tmp_path, fake_site, "--precision=FP32"),
        lacks="float64=True, memory_figures=True, eager_kernels=True, minutes_per_program=240",
        host_flops=0,
        FAKEDEV_DEFECTS="bf16_products",
    )
    assert verdict(done) == (5, "INVALID")
    assert findings(done)["P1"]["status"] == "fail"


def test_calls_of_a_device_that_records_its_steps_are_made_again(
    tmp_path: Path, fake_site: Path
) -> None:
    done = run(
        *(tmp_path, fake_site, "--precision=FP32", "--workload=litgpt-forward", "--batch-size=2"),
        lacks="eager_kernels=True",
    )
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert findings(done)["L1"]["status"] == "pass"


def test_steps_with_dropout_are_repeated_on_a_device(tmp_path: Path, fake_site: Path) -> None:
    flags = ("--precision=BF16", "--workload=nemo-bert-base", "--no-mixed-precision")
    done = run(tmp_path, fake_site, *flags)
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert findings(done)["L1"]["status"] == "pass"


def test_a_device_that_records_its_steps_shows_elements_of_every_step(
    tmp_path: Path, fake_site: Path
) -> None:
    done = run(tmp_path, fake_site, "--precision=BF16", lacks="eager_kernels=True")
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert findings(done)["L1"]["status"] == "pass"


# -- by hand ----------------------------------------------------------------------------------


@pytest.mark.long
def test_without_full_products_in_the_reference_a_narrow_device_is_unverified_and_not_accused(
    tmp_path: Path, fake_site: Path
) -> None:
    done = run(
        *(tmp_path, fake_site, "--precision=BF16"),
        host_flops=0,
        FAKEDEV_DEFECTS="bf16_products",
    )
    assert verdict(done) == (0, "UNVERIFIED")
    assert findings(done)["E1"]["status"] == findings(done)["L1"]["status"] == "not_observed"


@pytest.mark.long
def test_where_full_products_are_declared_lacking_the_host_makes_the_reference_and_fp32_is_refused(
    tmp_path: Path, fake_site: Path
) -> None:
    flags = {
        "lacks": "full_float32_products=True",
        "host_flops": 0,
        "FAKEDEV_DEFECTS": "bf16_products,noisy",
    }
    done = run(tmp_path / "bf16", fake_site, "--precision=BF16", **flags)
    assert verdict(done) == (0, "CONSISTENT")
    assert (passes(done, ON_DEVICE), "live" in passes(done, ON_HOST)) == (set(), True)
    done = run(tmp_path / "fp32", fake_site, "--precision=FP32", **flags)
    assert done.code == 3
    assert "multiplies float32 matrices in a narrower format" in done.said[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "env", "said"),
    [
        (
            "FP32",
            {"FAKEDEV_DEFECTS": "no_float64"},
            "the reference on the device failed: TypeError: Cannot convert a fakedev tensor to "
            "float64 dtype",
        ),
        (
            "FP32",
            {"FAKEDEV_DEFECTS": "no_bfloat16"},
            "the border to BF16 failed: TypeError: fakedev has no bfloat16",
        ),
        ("BF16", {"FAKEDEV_REFUSED_OPS": "aten::index.Tensor,aten::index.Tensor_out"}, None),
        ("BF16", {"FAKEDEV_REFUSED_OPS": "aten::normal_,aten::uniform_,aten::random_"}, None),
        ("BF16", {"FAKEDEV_DEFECTS": "slow_synchronize,noisy"}, None),
        ("BF16", {"FAKEDEV_DEFECTS": "no_strided"}, None),
    ],
    ids=["float64", "bfloat16", "indices", "random numbers", "slow synchronize", "strides"],
)
def test_what_was_not_declared_fails_alone_in_one_line_and_accuses_nobody(
    tmp_path: Path, fake_site: Path, precision: str, env: dict[str, str], said: str | None
) -> None:
    flags = (f"--precision={precision}", "--audit=full")
    done = run(tmp_path, fake_site, *flags, host_flops=0, **env)
    assert verdict(done) == (0, "CONSISTENT"), done.record["audit"]
    assert [line for line in done.record["warnings"] if " failed: " in line][:1] == [said] * bool(
        said
    )
