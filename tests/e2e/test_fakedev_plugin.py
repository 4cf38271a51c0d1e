"""A device llmb has never heard of, through its own plugin package: the door fits new hardware."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e import harness
from tests.e2e.harness import Ended

FLAGS = (*harness.TINY_RUN, *harness.SAME)


@pytest.fixture(scope="session")
def fakedev_run(once, fake_site: Path, fake_plugin_site: Path) -> Ended:
    """``llmb run --device fakedev:0`` with nothing else to choose from."""
    sites = [fake_plugin_site, fake_site]
    return once(
        "fakedev-plugin-run",
        lambda folder: harness.run(folder / "out", "--device=fakedev:0", *FLAGS, plugins=sites),
    )


def test_the_vendors_own_plugin_is_chosen_before_the_generic_one(fakedev_run: Ended) -> None:
    assert (fakedev_run.code, fakedev_run.said) == (0, [])
    facts = fakedev_run.record["plugin"]
    assert (facts["name"], facts["distribution"], facts["version"]) == (
        "fakedev",
        "llmb-fakedev",
        "0.3",
    )
    config = fakedev_run.record["config"]
    assert (config["device"], config["precision"]["name"]) == ("fakedev:0", "FP32")


def test_it_trains_as_the_cpu_does(fakedev_run: Ended, fake_site: Path, tmp_path: Path) -> None:
    flags = ("--plugin=cpu", "--precision=FP32", *FLAGS)
    cpu = harness.run(tmp_path / "out", *flags, plugins=[fake_site])
    evidence = "evidence/repeat-0/fences.safetensors"
    fake, host = (load_file(done.directory / evidence)["loss"] for done in (fakedev_run, cpu))
    assert len(fake) >= 3
    torch.testing.assert_close(fake, host, rtol=1e-6, atol=0)


def test_the_only_files_of_the_plugin_are_its_own_and_they_are_shown(fakedev_run: Ended) -> None:
    paths = [file["path"] for file in fakedev_run.record["plugin"]["files"]]
    assert paths == ["llmb_fakedev/__init__.py", "llmb_fakedev/plugin.py"]
    s1 = next(f for f in fakedev_run.record["audit"]["findings"] if f["id"] == "S1")
    assert s1["status"] == "pass"


def test_the_devices_native_library_is_a_closed_component_and_the_run_not_strict(
    fakedev_run: Ended, fake_site: Path
) -> None:
    (library,) = fakedev_run.record["plugin"]["closed_components"]
    data = (fake_site / "fakedev_device.so").read_bytes()
    assert (library["name"], library["version"]) == ("fakedev_device.so", "0.1")
    assert (library["sha256"], library["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert library["where_to_get"] == "pip install fakedev"
    assert fakedev_run.record["plugin"]["strict"] is False


def test_its_datasheet_peak_gives_an_mfu(fakedev_run: Ended) -> None:
    assert fakedev_run.record["result"]["mfu"]["peak_source"] == "fakedev datasheet"


def test_a_refused_format_is_answered_with_the_vendors_reason(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    sites = [fake_plugin_site, fake_site]
    done = harness.run(tmp_path / "out", "--precision=fp8", *FLAGS, plugins=sites)
    assert (done.code, len(done.said)) == (3, 1)
    assert "the fake device has no 8-bit products (it offers FP32, BF16)" in done.said[0]


def test_a_device_index_out_of_range_is_named_with_the_count(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    sites = [fake_plugin_site, fake_site]
    flags = ("--plugin=fakedev", "--device=fakedev:9", *FLAGS)
    done = harness.run(tmp_path / "out", *flags, plugins=sites)
    assert (done.code, len(done.said)) == (3, 1)
    assert "'fakedev:9': there are 2 fakedev devices" in done.said[0]


def test_the_library_without_its_device_leaves_the_plugin_listed_as_unavailable(
    fake_plugin_site: Path,
) -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(fake_plugin_site))
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    assert not offers["fakedev"]["available"]
    assert "sees no accelerator" in offers["fakedev"]["reason"]


def test_llmb_load_plugins_leaves_the_device_to_the_generic_plugin(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    sites = [fake_plugin_site, fake_site]
    flags = ("--device=fakedev:0", "--precision=FP32", *FLAGS)
    done = harness.run(tmp_path / "out", *flags, plugins=sites, LLMB_LOAD_PLUGINS="")
    assert (done.code, done.record["plugin"]["name"]) == (0, "generic")


@pytest.mark.quick
def test_a_vendor_needs_less_than_thirty_lines() -> None:
    plugin = Path(__file__).parent.parent / "plugins/llmb-fakedev/llmb_fakedev/plugin.py"
    lines = [line for line in plugin.read_text().splitlines() if line.strip()]
    assert len(lines) < 30
