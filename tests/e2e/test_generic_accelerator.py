"""The built-in plugin ``generic`` on an accelerator that is none of torch's own (tests/plugins).

The fake device is real to torch: out of tree, autoloaded, with memory and a queue of its own.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llmb.records.members import read_folder
from llmb.submission import layout
from tests import builders
from tests.builders import with_manifest
from tests.e2e import harness
from tests.e2e.harness import Ended

FLAGS = (*harness.TINY, "--timed-steps=20", *harness.SAME)
#: A step takes its time, whatever the batch size; memory for three sequences but not for four.
SLOW_AND_SMALL = {"FAKEDEV_KERNEL_US": "400", "FAKEDEV_MEMORY_MB": "110"}

Once = Callable[[str, Callable[[Path], Ended]], Ended]


@pytest.fixture(scope="session")
def default_run(once: Once, fake_site: Path) -> Ended:
    """A run in which nothing but the tiny shapes is asked for."""
    return once(
        "fakedev-default",
        lambda folder: harness.run(
            folder / "out",
            *FLAGS,
            "--sequence-length=128",
            plugins=[fake_site],
            quiet=False,
            **SLOW_AND_SMALL,
        ),
    )


@pytest.fixture(scope="session")
def fp32_run(once: Once, fake_site: Path) -> Ended:
    """A run in FP32 on the second device, with so little to compute that Python runs ahead."""
    flags = (*FLAGS, "--device=fakedev:1", "--precision=FP32", "--batch-size=2")
    return once(
        "fakedev-fp32",
        lambda folder: harness.run(
            folder / "out", *flags, plugins=[fake_site], FAKEDEV_KERNEL_US="600"
        ),
    )


@pytest.fixture(scope="session")
def cpu_run(once: Once, fake_site: Path) -> Ended:
    """The same run with the plugin of the CPU, on the same machine."""
    flags = (*FLAGS, "--plugin=cpu", "--precision=FP32", "--batch-size=2")
    return once(
        "fakedev-cpu", lambda folder: harness.run(folder / "out", *flags, plugins=[fake_site])
    )


# -- what is chosen ---------------------------------------------------------------------------


def test_plugin_list_shows_generic_with_both_devices_and_the_plain_casts(fake_site: Path) -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(fake_site))
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    generic = offers["generic"]
    assert (generic["available"], generic["reason"]) == (True, None)
    assert [device["name"] for device in generic["devices"]] == ["fakedev:0", "fakedev:1"]
    assert generic["devices"][1]["description"] == "fake device 1"
    assert [p["name"] for p in generic["precisions"]] == ["BF16", "FP16", "FP32"]
    assert offers["cpu"]["available"]


def test_without_any_flag_the_accelerator_is_chosen_and_runs_in_bf16(default_run: Ended) -> None:
    assert (default_run.code, "Traceback" in default_run.stderr) == (0, False)
    config = default_run.record["config"]
    assert (config["plugin"], config["device"]) == ("generic", "fakedev")
    assert config["precision"]["name"] == "BF16"
    dtypes = {w["dtype"] for w in default_run.evidence("weights.json")["processed"]}
    assert dtypes == {"bfloat16"}
    # ln 32000 is 10.4; a sharp start (docs/adr/0048) adds half the square of 2.3.
    assert 12 < default_run.record["result"]["loss_last"] < 14


def test_a_device_of_another_number_is_used_and_recorded(fp32_run: Ended) -> None:
    assert (fp32_run.code, fp32_run.said) == (0, [])
    record = fp32_run.record
    assert record["config"]["device"] == record["topology"]["ranks"][0]["device"] == "fakedev:1"
    assert "fake device 1" in fp32_run.stdout


def test_the_record_names_the_package_that_brought_the_device_into_torch(fp32_run: Ended) -> None:
    assert fp32_run.record["system"]["drivers"]["fakedev"] == "0.1"


def test_a_fused_optimizer_is_asked_for_only_where_the_device_has_that_kernel(
    fp32_run: Ended,
) -> None:
    # torch lists every out-of-tree device as one with fused AdamW; fakedev has no _fused_adamw_.
    (group,) = fp32_run.evidence("optimizer.json")["groups"]
    assert not group["fused"]


@pytest.mark.parametrize("flags", [(), ("--plugin=generic",)], ids=["any plugin", "generic"])
def test_a_device_number_that_is_not_there_is_unavailable_and_the_count_is_named(
    tmp_path: Path, fake_site: Path, flags: tuple[str, ...]
) -> None:
    done = harness.run(tmp_path / "out", *flags, "--device=fakedev:7", plugins=[fake_site])
    assert (done.code, len(done.said)) == (3, 1)
    assert "'fakedev:7': there are 2 fakedev devices" in done.said[0]
    assert not done.output.exists() or list(done.output.iterdir()) == []


# -- what is computed -------------------------------------------------------------------------


def samples(*runs: Ended) -> list[dict[str, torch.Tensor]]:
    """Return losses and sampled parameters, as read back at the fences that all ``runs`` had."""
    every = [load_file(done.directory / "evidence/repeat-0/fences.safetensors") for done in runs]
    common = min(len(one["loss"]) for one in every)
    assert common >= 3
    return [{name: values[:common] for name, values in one.items()} for one in every]


def test_in_fp32_the_losses_are_those_of_the_cpu(fp32_run: Ended, cpu_run: Ended) -> None:
    assert cpu_run.record["config"]["plugin"] == "cpu"
    fake, cpu = samples(fp32_run, cpu_run)
    torch.testing.assert_close(fake["loss"], cpu["loss"], rtol=1e-6, atol=0)
    assert fp32_run.evidence("weights.json") == cpu_run.evidence("weights.json")


def test_in_fp32_the_parameters_move_as_on_the_cpu(fp32_run: Ended, cpu_run: Ended) -> None:
    fake, cpu = (one["parameters"] for one in samples(fp32_run, cpu_run))
    moved = (cpu[-1] - cpu[0]).abs().max().item()
    assert moved > 5e-5, "twenty steps at a learning rate of 1e-5 at least"
    torch.testing.assert_close(fake, cpu, rtol=0, atol=moved / 1000)


# -- what is timed ----------------------------------------------------------------------------


def test_steps_are_only_enqueued_and_their_time_comes_from_the_fences(fp32_run: Ended) -> None:
    timing, step_time = fp32_run.record["timing"], fp32_run.record["result"]["step_time_s"]
    assert timing["step_clock"] == "enqueue"
    fences = list(zip(timing["fence_steps"], timing["fence_ns"], strict=True))
    means = [
        (ns - before_ns) / (steps - before) / 1e9
        for (before, before_ns), (steps, ns) in itertools.pairwise(fences)
        if before >= timing["warmup_steps"]
    ]
    assert len(means) == 2
    assert step_time["median"] == pytest.approx(statistics.median(means))


def test_the_stamps_of_steps_run_ahead_of_the_device_and_the_fences_do_not(
    fp32_run: Ended, cpu_run: Ended
) -> None:
    timing, result = fp32_run.record["timing"], fp32_run.record["result"]
    if cpu_run.record["result"]["step_time_s"]["median"] > result["step_time_s"]["median"] / 2:
        pytest.skip("this host is too busy to be ahead of a device")
    # A device's step cannot be shorter than its kernels take, whatever else the host does: were the
    # loop to wait for every step, no two stamps could be closer than the fastest step.
    fences = list(zip(timing["fence_steps"], timing["fence_ns"], strict=True))
    fastest_ns = min((end - start) / (b - a) for (a, start), (b, end) in itertools.pairwise(fences))
    closest_ns = min(b - a for a, b in itertools.pairwise(timing["step_ns"]))
    assert closest_ns < 0.8 * fastest_ns
    # Had no fence waited for the device, it would come microseconds after the stamp before it. How
    # far behind the device is depends on the host, too: a busy host enqueues slowly.
    waited_ns = [
        fence - timing["step_ns"][steps - 1]
        for fence, steps in zip(timing["fence_worker_ns"], timing["fence_steps"], strict=True)
    ]
    assert max(waited_ns[1:]) > 2_000_000


# -- memory and batch size --------------------------------------------------------------------


def test_the_batch_size_is_searched_by_default_until_memory_ends(default_run: Ended) -> None:
    record = default_run.record
    search = record["batch_size_search"]
    status = {trial["batch_size"]: trial["status"] for trial in search["trials"]}
    assert status == {1: "measured", 2: "measured", 4: "out_of_memory", 3: "measured"}
    # Which is fastest is a matter of how busy this machine is.
    rates = {trial["batch_size"]: trial["tokens_per_second"] or 0 for trial in search["trials"]}
    assert search["best"] == record["config"]["batch_size"] == max(rates, key=rates.__getitem__)
    refused = next(t for t in search["trials"] if t["status"] == "out_of_memory")
    assert (refused["tokens_per_second"], "out of memory" in refused["message"]) == (None, True)


def test_memory_that_torch_cannot_tell_is_null_and_never_0(default_run: Ended) -> None:
    record = default_run.record
    told = [record["result"], record["timing"], *record["timing"]["repeats"]]
    told += [*record["topology"]["ranks"], *record["batch_size_search"]["trials"]]
    assert {part["peak_memory_bytes"] for part in told} == {None}
    assert [device["memory_bytes"] for device in record["system"]["devices"]] == [None, None]
    (line,) = (line for line in default_run.stdout.splitlines() if line.startswith("peak memory"))
    assert "not measured" in line


# -- calibration, verification ----------------------------------------------------------------


def test_calibrate_measures_the_accelerator(fake_site: Path) -> None:
    env = harness.environment(fake_site)
    # The fake device computes BF16 on the processor, which may have no instructions for it.
    flags = ("--seconds=0.1", "--precision=FP32", "--json")
    done = harness.call("calibrate", *flags, env=env)
    assert (done.code, done.said) == (0, [])
    ceiling = json.loads(done.stdout)
    assert ceiling["precision"] == "FP32"
    assert {gemm["direction"] for gemm in ceiling["gemms"]} == {
        "forward",
        "grad_input",
        "grad_weight",
    }
    assert min(ceiling["flops_per_second"], ceiling["memory_bytes_per_second"]) > 0


def test_the_ceiling_in_a_record_counts_the_time_of_the_device(default_run: Ended) -> None:
    gemms = default_run.record["ceilings"]["before"]["gemms"]
    assert min(gemm["best_s"] for gemm in gemms) >= 0.9 * 400e-6, "a kernel takes 400 us"


def test_the_run_stands_up_to_verification(default_run: Ended, tmp_path: Path) -> None:
    files = with_manifest(read_folder(default_run.directory, layout.is_known))
    bundle = builders.write(tmp_path / "bundle", files)
    done = harness.call("verify", bundle, "--json")
    (result,) = json.loads(done.stdout)
    assert (done.code, result["reason"]) == (0, None)
    assert {"recomputation", "audit"} <= {check["name"] for check in result["checks"]}
