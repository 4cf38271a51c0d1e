"""``llmb reproduce`` does a real run again, from its bundle, and the new run links to the old."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmb
from llmb.records.bundle import read_bundle
from llmb.records.members import read_folder
from llmb.submission import layout
from llmb.submission.manifest import zip_bytes
from tests.builders import with_manifest
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended

pytestmark = pytest.mark.long
UNAVAILABLE, FAILED, REFUSED = 3, 4, 6


def bundle_of(run: Path, target: Path) -> Path:
    """Make a bundle of a debug run, which llmb itself would refuse to hand in."""
    files = with_manifest(read_folder(run, layout.is_known))
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


def reproduce(bundle: Path, output: Path, *flags: object, plugins: Any = (), **env: str) -> Ended:
    command = harness.llmb_command("reproduce", bundle, "--output-dir", output, *flags)
    return harness.ended(command, output, harness.environment(*plugins, **env), None)


@pytest.fixture
def bundle(tiny_run: Ended, tmp_path: Path) -> Path:
    """Give the bundle of the tiny run of the built-in plugin."""
    return bundle_of(tiny_run.directory, tmp_path / "bundle")


@pytest.fixture(scope="session")
def reproduced(once: Once, tiny_run: Ended) -> Ended:
    """The tiny run done again, from its bundle as a zip."""

    def make(folder: Path) -> Ended:
        packed = folder / "tiny.zip"
        packed.write_bytes(
            zip_bytes(with_manifest(read_folder(tiny_run.directory, layout.is_known)))
        )
        return reproduce(packed, folder / "out", "--quiet", "--json")

    return once("reproduced", make)


def others(differences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return differences but of variables: whatever ran before in pytest may have set some."""
    return [each for each in differences if not each["subject"].startswith("variable ")]


def test_on_the_same_machine_nothing_differs_and_a_dry_run_runs_nothing(
    bundle: Path, tmp_path: Path
) -> None:
    done = reproduce(bundle, tmp_path / "runs", "--dry-run", "--json")
    assert (done.code, done.said) == (0, [])
    data = json.loads(done.stdout)
    assert others(data["differences"]) == []
    assert data["same_class_of_hardware"] is True
    assert data["blocked"] is None
    assert "the original is a debug run" in data["notes"][0]
    assert not (tmp_path / "runs").exists()


def test_a_variable_that_steers_torch_is_said_to_differ(bundle: Path, tmp_path: Path) -> None:
    done = reproduce(bundle, tmp_path / "runs", "--dry-run", TORCH_LOGS="recompiles")
    assert "variable TORCH_LOGS: not set there, recompiles here" in done.stdout


def test_the_same_configuration_is_run_with_a_seed_of_its_own(
    tiny_run: Ended, reproduced: Ended
) -> None:
    assert (reproduced.code, reproduced.said) == (0, [])
    theirs, ours = tiny_run.record["config"], reproduced.record["config"]
    assert ours["seed"] != theirs["seed"]
    assert {**ours, "seed": 0} == {**theirs, "seed": 0}


def test_the_new_run_links_to_the_bundle_and_says_how_far_it_is_from_it(
    tiny_run: Ended, reproduced: Ended
) -> None:
    data, link = json.loads(reproduced.stdout), reproduced.record["reproduction_of"]
    theirs, ours = tiny_run.record["result"], reproduced.record["result"]
    assert link["bundle_id"] == data["bundle_id"]
    assert link["run_id"] == tiny_run.record["run_id"]
    assert link["tokens_per_second"] == theirs["tokens_per_second"]
    assert link["ci95"] == theirs["ci95"]
    ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
    assert data["ratio"] == pytest.approx(ratio)
    assert link["difference_percent"] == pytest.approx((ratio - 1) * 100)
    assert data["within_limit"] is (abs(ratio - 1) <= 0.05)
    low, high = data["ratio_ci95"] or (ratio, ratio)
    assert low <= ratio <= high
    assert others(data["differences"]) == []
    assert "the original is a debug run" in data["lacking"]


def test_a_bundle_of_the_repetition_is_verified_with_its_link(
    tiny_run: Ended, reproduced: Ended, bundle: Path, tmp_path: Path
) -> None:
    again = bundle_of(reproduced.directory, tmp_path / "again")
    done = harness.call("verify", bundle, again, "--json")
    assert done.code == 0, done.stderr
    first, second = json.loads(done.stdout)
    (repetition,) = first["reproductions"]
    assert repetition["bundle_id"] == second["bundle_id"] == read_bundle(again).bundle_id
    assert first["verdict"] == tiny_run.record["audit"]["verdict"]
    assert "reproduction" in {check["name"] for check in second["checks"]}


def test_people_are_told_the_ratio_with_its_interval(bundle: Path, tmp_path: Path) -> None:
    done = reproduce(bundle, tmp_path / "runs")
    assert done.code == 0, done.stderr
    assert "[DEBUG, not comparable]" in done.stdout
    link = done.record["reproduction_of"]
    line = done.stdout.partition("\nratio ")[2].splitlines()[0]
    assert f"{link['difference_percent']:+.2f} %, " in line
    # Of a run this short the interval may reach 0, and then there is none of the ratio.
    assert re.search(r"\((95 % interval [\d.]+ to [\d.]+|no interval)\)", line)
    assert str(done.directory) in done.stdout
    shown = harness.call("show", done.directory)
    assert f"bundle {read_bundle(bundle).bundle_id[:12]} with" in shown.stdout


def test_a_damaged_bundle_is_refused_before_anything_is_started(
    bundle: Path, tmp_path: Path
) -> None:
    (bundle / "model.diff").write_text("another story")
    done = reproduce(bundle, tmp_path / "runs")
    assert (done.code, len(done.said)) == (REFUSED, 1)
    assert "'model.diff' is not the file the manifest lists" in done.said[0]
    assert not (tmp_path / "runs").exists()


def older(bundle: Path, digest: str) -> Path:
    """Make a bundle one of llmb 0.1.0 with the reference of that digest, manifest and all."""
    record = json.loads((bundle / "record.json").read_bytes())
    record |= {"llmb_version": "0.1.0", "reference_digest": digest}
    (bundle / "record.json").write_text(json.dumps(record))
    (bundle / "MANIFEST.json").unlink()
    return bundle_of(bundle, bundle)


#: Of the first llama-1.4b bundles, whose llama computes as here; and one that is not known to.
SAME = "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8"
EARLIER = "649af7d83608b5067109ea718ef3f0fce24e609314ada6221fbe096abf664886"


def test_a_bundle_of_an_older_llmb_is_run_where_its_family_computes_the_same(
    bundle: Path, tmp_path: Path
) -> None:
    done = reproduce(older(bundle, SAME), tmp_path / "runs")
    assert done.code == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "made by" in line)
    assert "made by llmb 0.1.0 (reference 17021ed72954); the llama computation is the same" in line
    link = done.record["reproduction_of"]
    assert link["bundle_id"] == read_bundle(bundle).bundle_id
    assert done.record["llmb_version"] == llmb.__version__
    assert "another computation" not in done.stdout


def test_a_bundle_of_another_computation_is_not_run_and_the_version_is_named(
    bundle: Path, tmp_path: Path
) -> None:
    done = reproduce(older(bundle, EARLIER), tmp_path / "runs")
    assert (done.code, len(done.said)) == (UNAVAILABLE, 1)
    assert done.said[0].endswith(": use llmb 0.1.0")
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_is_in_the_way(bundle: Path, tmp_path: Path) -> None:
    done = reproduce(bundle, tmp_path / "runs", "--device", "cpu:7")
    assert (done.code, len(done.said)) == (UNAVAILABLE, 1)
    assert "cpu:7" in done.said[0]


# -- a plugin that is here in another shape -----------------------------------------------------

ODD = """
from llmb.plugin import PluginOption

@hookimpl
def llmb_options():
    level = PluginOption(name="level", type="int", default=1, help="a level")
    other = PluginOption(name="other", type="bool", default=True, help="new")
    return {"": [level], "fewer": [], "more": [level, other]}[os.environ.get("ODD_OPTIONS", "")]

@hookimpl
def llmb_post_process_model(model):
    if "ODD_MEMORY" in os.environ:
        torch.empty(2**50)
"""


@pytest.fixture(scope="session")
def odd_run(once: Once) -> Ended:
    """A run of a throw-away plugin with an option; its plugin lies beside the runs."""

    def make(folder: Path) -> Ended:
        site = harness.plugin(folder / "site", "odd", ODD)
        flags = (*harness.with_plugin("odd"), harness.UNAUDITED, "-O", "level=3")
        return harness.run(folder / "out", *flags, plugins=[site])

    return once("odd-run", make)


@pytest.fixture
def odd(odd_run: Ended, tmp_path: Path) -> Path:
    """Give the bundle of that run."""
    assert odd_run.code == 0, odd_run.stderr
    return bundle_of(odd_run.directory, tmp_path / "bundle")


@pytest.fixture
def site(odd_run: Ended) -> Path:
    return odd_run.output.parent / "site"


def test_a_missing_plugin_ends_in_three_with_what_to_type_and_installs_nothing(
    odd: Path, tmp_path: Path
) -> None:
    done = reproduce(odd, tmp_path / "runs")
    assert done.code == UNAVAILABLE
    assert done.said == [
        "llmb: plugin 'odd' is not installed: install llmb-odd 0.1 as its vendor says"
    ]
    assert "plugin odd: llmb-odd 0.1 there, not installed here" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_options_are_replayed(odd: Path, site: Path, tmp_path: Path) -> None:
    done = reproduce(odd, tmp_path / "runs", "--quiet", plugins=[site])
    assert done.code == 0, done.stderr
    assert done.record["plugin"]["options"] == {"level": 3}


def test_an_option_that_is_gone_is_in_the_way(odd: Path, site: Path, tmp_path: Path) -> None:
    done = reproduce(odd, tmp_path / "runs", plugins=[site], ODD_OPTIONS="fewer")
    assert (done.code, len(done.said)) == (UNAVAILABLE, 1)
    assert "-O level" in done.said[0]
    assert "install llmb-odd 0.1 as its vendor says" in done.said[0]


def test_an_option_that_is_new_is_said_and_may_be_given(
    odd: Path, site: Path, tmp_path: Path
) -> None:
    flags = ("--dry-run", "-O", "other=false")
    done = reproduce(odd, tmp_path / "runs", *flags, plugins=[site], ODD_OPTIONS="more")
    assert done.code == 0, done.stderr
    assert "plugin option other: none there, False here" in done.stdout


def test_changed_sources_of_the_plugin_are_found_by_their_digests(
    odd: Path, tmp_path: Path
) -> None:
    other = harness.plugin(tmp_path / "other", "odd", ODD + "\nMORE = True\n")
    done = reproduce(odd, tmp_path / "runs", "--dry-run", plugins=[other])
    assert done.code == 0, done.stderr
    assert "plugin files: 1 there, the same but for 1 (llmb_odd.py) here" in done.stdout
    assert "compare them with the bundle's folder plugin/" in done.stdout


def test_running_out_of_memory_says_that_the_batch_size_is_the_bundles(
    odd: Path, site: Path, tmp_path: Path
) -> None:
    done = reproduce(odd, tmp_path / "runs", "--quiet", plugins=[site], ODD_MEMORY="1")
    assert (done.code, len(done.said)) == (FAILED, 1)
    assert "a reproduction has the batch size of the bundle, 1, and no other" in done.said[0]
    assert not done.finished


def test_a_run_of_ranks_is_done_again_by_as_many(tmp_path: Path) -> None:
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN, "--nproc=2", "--dp-shard=2")
    original = harness.run(tmp_path / "first", *flags)
    assert original.code == 0, original.stderr
    done = reproduce(
        bundle_of(original.directory, tmp_path / "bundle"), tmp_path / "out", "--quiet", "--json"
    )
    assert (done.code, done.said) == (0, [])
    data = json.loads(done.stdout)
    assert others(data["differences"]) == []
    assert data["same_class_of_hardware"] is True
    ours, theirs = done.record, original.record
    assert ours["topology"]["parallelism"] == theirs["topology"]["parallelism"]
    assert len(ours["topology"]["ranks"]) == 2
    assert ours["reproduction_of"]["run_id"] == theirs["run_id"]
