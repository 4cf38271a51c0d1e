"""``llmb audit --only``: an accused vendor judges one part again, and finds the mistake in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from llmb.records import members
from llmb.submission import layout
from tests.builders import with_manifest
from tests.cheats import runner
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended

INVALID, USAGE = 5, 2
WRONG, SOUND = "layers.1.mlp.up_proj", "layers.0.mlp.up_proj"
WHO = {"measured", "honest", "reference"}


def only(run: Ended, *flags: object) -> Ended:
    """Judge a part of ``run`` again, with the plugin that it was made with."""
    plugins = run.output.parent / "plugins"
    env = harness.environment(plugins)
    return harness.call("audit", run.directory, "--quiet", "--only", *flags, env=env)


def told(ended: Ended) -> dict[str, Any]:
    """Return what the command has printed as JSON."""
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="session")
def accused_run(once: Once) -> Ended:
    """A run that ends INVALID: one matrix of the second layer multiplies in 8 bits."""
    return once("one-in-fp8", lambda folder: runner.run(folder, "fp8_one_matrix", "BF16"))


@pytest.fixture(scope="session")
def fused_run(once: Once) -> Ended:
    """An honest run whose plugin fuses gate and up, and says so in its parameter map."""
    return once("fused", lambda folder: runner.run(folder, "honest_fused", "BF16"))


def test_the_part_that_is_wrong_still_fails_and_shows_where_the_error_begins(
    accused_run: Ended,
) -> None:
    assert accused_run.record["audit"]["verdict"] == "INVALID"
    before = {path.name for path in accused_run.directory.iterdir()}
    done = only(accused_run, "E2", "--part", WRONG, "--json")
    assert done.code == INVALID, done.stderr
    found = told(done)
    assert (found["status"], found["part"]) == ("fail", f"model.{WRONG}.weight")
    assert found["recorded"]["status"] == "fail"
    assert len(found["causes"]) == 2
    # What comes in is as right as in an honest run, what comes out is not.
    bits = found["bits"]
    assert bits["input"]["measured"] == pytest.approx(bits["input"]["honest"], abs=0.1)
    assert bits["output"]["measured"] < bits["output"]["honest"] - 2
    tensors = load(Path(found["tensors"]).read_bytes())
    gradients = {f"{who}/branches/gradient" for who in WHO}
    assert gradients <= {*tensors}
    assert all(tensors[name].shape == (384, 64) for name in gradients)
    picture = Path(found["picture"]).read_text()
    assert picture.count("<svg") == 1
    assert "mathdefault" not in picture, "numbers beside the axes are plain"
    stem = f"only-E2-{WRONG}"
    after = {path.name for path in accused_run.directory.iterdir()}
    assert after - before == {f"{stem}.safetensors", f"{stem}.svg"}
    # The run itself, and what a bundle of it would hold, are untouched.
    assert not any(map(layout.is_known, after - before))


def test_a_sound_part_of_the_same_run_passes(accused_run: Ended, tmp_path: Path) -> None:
    target = tmp_path / "mine.safetensors"
    done = only(accused_run, "e2", "--part", SOUND, "--output", target)
    assert done.code == 0, done.stderr
    assert "E2: pass" in done.stdout
    assert f"model.{WRONG}.weight" in done.stdout, "the broken parts are named"
    assert "no part of the run, of a bundle or a verdict" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"mine.safetensors", "mine.svg"}


@pytest.mark.parametrize("rule", ["E1", "P1", "L1"])
def test_without_a_name_the_accused_part_is_taken(
    accused_run: Ended, tmp_path: Path, rule: str
) -> None:
    done = only(accused_run, rule, "--json", "--output", tmp_path / "a.safetensors")
    found = told(done)
    # L1 draws new steps: the next matrix, accused then, may be within the limit now.
    statuses = ("fail", "pass") if rule == "L1" else ("fail",)
    assert found["status"] in statuses
    assert done.code == (INVALID if found["status"] == "fail" else 0), done.stderr
    assert found["part"].startswith("model.layers.1.")
    assert (found["part"] in found["broken_parts"]) is (found["status"] == "fail")
    assert found["recorded"]["status"] == "fail"


def test_a_bundle_is_read_and_nothing_is_written_into_it(
    accused_run: Ended, tmp_path: Path
) -> None:
    bundle, here = tmp_path / "bundle", tmp_path / "here"
    here.mkdir()
    files = with_manifest(dict(members.read_folder(accused_run.directory, layout.is_known)))
    for name, content in files.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_bytes(content)
    env = harness.environment(accused_run.output.parent / "plugins")
    done = harness.call("audit", bundle, "-q", "--only", "E2", "--part", SOUND, env=env, cwd=here)
    assert done.code == 0, done.stderr
    assert {path.name for path in here.iterdir()} == {
        f"only-E2-{SOUND}.safetensors",
        f"only-E2-{SOUND}.svg",
    }
    written = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    assert written == {*files}


def test_of_a_module_that_was_fused_the_gradient_alone_is_written(
    fused_run: Ended, tmp_path: Path
) -> None:
    done = only(fused_run, "L1", "--part", WRONG, "--json", "--output", tmp_path / "a.safetensors")
    assert done.code == 0, done.stderr
    found = told(done)
    assert "has no module" in found["not_captured"]
    assert {*found["bits"]} == {"gradient"}
    tensors = load((tmp_path / "a.safetensors").read_bytes())
    assert "measured/live/gradient" in tensors
    assert "measured/live/output" not in tensors


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("T1",), "--only T1: this rule looks at a whole run"),
        (("mlp",), "--only MLP: there is no such rule"),
        (("E2", "--part", "layers.1.mlp.up_prj"), "nearest: layers.1.mlp.up_proj"),
        (("E2", "--part", SOUND, "--output", "a.txt"), "must end in .safetensors"),
        (("E2", "--rule", "E2"), "--rule, --only"),
    ],
)
def test_what_cannot_be_judged_again_is_refused_in_one_line(
    accused_run: Ended, flags: tuple[str, ...], said: str
) -> None:
    done = only(accused_run, *flags)
    assert done.code == USAGE
    (line,) = done.said
    assert said in line


def test_the_audit_shows_limit_and_causes_of_what_failed_and_how_to_look_closer(
    accused_run: Ended,
) -> None:
    done = harness.call("audit", accused_run.directory, "--rule", "E2", "--rule", "N2")
    assert done.stdout.count("likely honest cause: ") == 2, "of the rule that failed alone"
    assert f"llmb audit {accused_run.directory} --only E2" in done.stdout
