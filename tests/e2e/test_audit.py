"""A run is looked at until its end: what becomes of one whose end goes wrong, and of a bundle."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

from llmb.records.bundle import MANIFEST
from llmb.records.members import read_folder
from llmb.submission import layout
from tests.builders import with_manifest
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended, run_plugin

FAILED, INTERRUPTED = 4, 130


def findings(done: Ended) -> dict[str, str]:
    """Return rule -> status of the blocking findings."""
    every = done.record["audit"]["findings"]
    return {f["id"]: f["status"] for f in every if f["level"] == "block"}


#: Does something as soon as the model is given a probe's weights: after the window, untimed.
IN_PROBE = """
def before(calls, ids):
    weight = Around.inner.model.layers["0"].self_attn.o_proj.weight
    if not bool(weight.detach().any(dim=1).all()):
        {statement}
@hookimpl
def llmb_post_process_model(model):
    Around.inner = model
    return Around(model, before)
"""


# -- a worker that does not live to the end of its audit --------------------------------------


@pytest.fixture(scope="session")
def killed_run(once: Once) -> Ended:
    """A run whose worker is killed while the probes run."""
    source = IN_PROBE.format(statement="os.kill(os.getpid(), signal.SIGKILL)")
    return once("killed-in-audit", lambda folder: run_plugin(folder, source))


def test_a_worker_that_dies_while_being_audited_leaves_a_finished_run_that_is_unverified(
    killed_run: Ended,
) -> None:
    assert (killed_run.code, killed_run.said) == (0, [])
    record = killed_run.record
    assert record["audit"]["verdict"] == "UNVERIFIED"
    assert record["result"]["tokens_per_second"] > 0
    assert record["timing"]["timed_steps"] == 20
    unseen = {rule for rule, status in findings(killed_run).items() if status == "not_observed"}
    assert unseen >= {"W1", "E1", "E2", "E3", "P1", "O2", "L1"}
    assert "fail" not in findings(killed_run).values()
    assert record["precision"]["effective"] is None


def test_why_it_died_is_told_to_the_user_in_the_record_and_in_the_log(killed_run: Ended) -> None:
    words = "the worker died while being audited: llmb.processes.worker was killed by SIGKILL"
    assert words in killed_run.stdout
    assert words in killed_run.record["warnings"]
    assert words in killed_run.log


def test_it_leaves_no_whole_weights_behind(killed_run: Ended) -> None:
    names = {path.name for path in killed_run.directory.iterdir()}
    assert not [name for name in names if name.startswith(".")]
    assert not list(killed_run.directory.rglob("*weights.safetensors"))


def test_an_error_in_a_probe_is_told_in_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path,
) -> None:
    statement = "raise RuntimeError('no such kernel')"
    done = run_plugin(tmp_path, IN_PROBE.format(statement=statement))
    assert (done.code, done.record["audit"]["verdict"]) == (0, "UNVERIFIED")
    (warning,) = (w for w in done.record["warnings"] if "being audited" in w)
    assert warning.endswith("RuntimeError: no such kernel")
    assert "Traceback" in done.log
    assert "llmb_odd.py" in done.log


def test_an_interrupt_while_a_run_is_audited_leaves_the_timing_and_no_scratch_folder(
    tmp_path: Path,
) -> None:
    source = IN_PROBE.format(statement="time.sleep(600)")
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    flags = harness.with_plugin("odd")
    with harness.running(tmp_path / "out", *flags, plugins=[folder]) as started:
        started.wait_for("being audited")
        started.wait_until(
            lambda: bool(list((tmp_path / "out").glob("*/.scratch-0/live-weights.safetensors")))
        )
        done = started.kill(signal.SIGINT)
        assert started.survivors() == []
    assert done.code == INTERRUPTED
    assert done.record["interruption"] is not None
    assert done.record["audit"]["verdict"] == "UNVERIFIED"
    assert not list(done.directory.glob(".scratch*"))


def test_a_calibrator_that_dies_leaves_a_finished_run_that_is_unverified(tmp_path: Path) -> None:
    source = """
    @hookimpl
    def llmb_set_environment(config):
        if "llmb.processes.honest_run" in sys.orig_argv:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_plugin(tmp_path, source)
    assert (done.code, done.record["audit"]["verdict"]) == (0, "UNVERIFIED")
    (warning,) = (w for w in done.record["warnings"] if "honest run" in w)
    assert "llmb.processes.honest_run was killed by SIGKILL" in warning
    found = findings(done)
    assert found["W1"] == "pass", "the verifier has looked nevertheless"
    assert {found[rule] for rule in ("E1", "E2", "P1", "L1")} == {"not_observed"}


# -- evidence that was touched ----------------------------------------------------------------

TOUCH = """
import atexit
def touch():
    for file in pathlib.Path(os.environ["OUTPUT"]).glob("*/{pattern}"):
        data = bytearray(file.read_bytes())
        data[-2] ^= 1
        file.write_bytes(data)
if "llmb.processes.worker" in sys.orig_argv:
    atexit.register(touch)
"""


@pytest.mark.parametrize(
    "name", ["gradients.safetensors", "steps.safetensors", "steps.json", "probed.json"]
)
def test_evidence_altered_between_worker_and_verifier_ends_the_run(
    tmp_path: Path, name: str
) -> None:
    source = TOUCH.format(pattern=f"evidence/repeat-0/{name}")
    done = run_plugin(tmp_path, source, OUTPUT=str(tmp_path / "out"))
    assert done.code == FAILED, done.stderr
    assert len(done.said) == 1, done.stderr
    assert name in done.said[0]
    assert "altered" in done.said[0] or "cannot be read" in done.said[0]
    assert not done.finished


def test_weights_altered_between_worker_and_verifier_prove_nothing(tmp_path: Path) -> None:
    source = TOUCH.format(pattern=".scratch-0/live-weights.safetensors")
    done = run_plugin(tmp_path, source, OUTPUT=str(tmp_path / "out"))
    warnings = [w for w in done.record["warnings"] if "altered" in w]
    assert len(warnings) == 2, "neither calibrator nor verifier takes them"
    assert all("live-weights.safetensors is not what the worker wrote" in w for w in warnings)
    assert done.record["audit"]["verdict"] == "UNVERIFIED"
    unseen = {rule for rule, status in findings(done).items() if status == "not_observed"}
    assert unseen >= {"W1", "E1", "E2", "E3", "P1", "O2", "L1"}


# -- a full audit -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def full_run(once: Once) -> Ended:
    """An honest run with a full audit."""
    flags = ("--precision=FP32", *harness.TINY_RUN, "--audit=full")
    return once("full-audit", lambda folder: harness.run(folder / "out", *flags))


def test_a_full_audit_of_an_honest_run_observes_every_rule(full_run: Ended) -> None:
    audit = full_run.record["audit"]
    assert audit["verdict"] == "CONSISTENT"
    statuses = {(f["id"], f["level"]): f["status"] for f in audit["findings"]}
    assert "fail" not in statuses.values()
    assert statuses["P2", "flag"] == "pass"
    assert full_run.record["precision"]["effective"] == "FP32"
    assert full_run.record["precision"]["bits"]["forward_min"] > 15


def test_llmb_audit_shows_every_rule_of_a_run_and_one_in_detail(full_run: Ended) -> None:
    done = harness.call("audit", full_run.directory)
    assert done.code == 0
    for finding in full_run.record["audit"]["findings"]:
        assert finding["id"] in done.stdout
    assert "CONSISTENT" in done.stdout
    one = harness.call("audit", full_run.directory, "--rule", "E2")
    (e2,) = (f for f in full_run.record["audit"]["findings"] if f["id"] == "E2")
    assert e2["measured"] in one.stdout
    assert e2["limit"] in one.stdout


# -- a stranger's look ------------------------------------------------------------------------


def verified(folder: Path, files: dict[str, bytes]) -> tuple[int, dict[str, Any]]:
    """Return exit code and result of ``llmb verify`` on a bundle of ``files``."""
    bundle = folder / "bundle"
    for name, content in with_manifest(files).items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_bytes(content)
    done = harness.call("verify", bundle, "--json")
    (result,) = json.loads(done.stdout)
    return done.code, result


@pytest.fixture(scope="session")
def files(tiny_run: Ended) -> dict[str, bytes]:
    found = read_folder(tiny_run.directory, layout.is_known)
    return {name: content for name, content in found.items() if name != MANIFEST}


def failed(result: dict[str, Any]) -> list[str]:
    return [check["name"] for check in result["checks"] if not check["ok"]]


@pytest.mark.parametrize("time", range(3))
def test_a_consistent_run_is_judged_the_same_by_anybody_each_time(
    files: dict[str, bytes], tmp_path: Path, time: int
) -> None:
    code, result = verified(tmp_path, files)
    assert failed(result) == []
    assert code == 0


def times(name: str, factor: float) -> Callable[[dict[str, bytes]], None]:
    def edit(files: dict[str, bytes]) -> None:
        path = f"evidence/repeat-0/{name}"
        files[path] = save(
            {k: v * factor if v.is_floating_point() else v for k, v in load(files[path]).items()}
        )

    return edit


def replayed_otherwise(files: dict[str, bytes]) -> None:
    """Give numbers in the place of weights that were as after the step."""
    path = "evidence/repeat-0/{}.safetensors"
    seen, replayed = (load(files[path.format(name)]) for name in ("steps", "replay"))
    name = next(name for name in replayed if name.endswith("/value"))
    assert not len(replayed[name]), "an honest step is replayed bit for bit"
    replayed[name] = 1.5 * seen[name.replace("replayed", "after")].float()
    files[path.format("replay")] = save(replayed)


@pytest.mark.parametrize(
    "edit",
    [
        times("gradients.safetensors", 1.5),
        times("steps.safetensors", 1.5),
        replayed_otherwise,
        times("reference.safetensors", 1.5),
        lambda files: files.pop("evidence/repeat-0/reference.safetensors"),
        lambda files: files.pop("evidence/repeat-0/pristine.json"),
        lambda files: files.pop("evidence/repeat-0/namespace.json"),
    ],
    ids=["gradients", "steps", "replay", "reference", "no reference", "no pristine", "no names"],
)
def test_a_bundle_whose_evidence_does_not_bear_its_findings_out_is_refused(
    files: dict[str, bytes], tmp_path: Path, edit: Callable[[dict[str, bytes]], None]
) -> None:
    changed = dict(files)
    edit(changed)
    code, result = verified(tmp_path, changed)
    assert code == 6
    assert "audit" in failed(result)


def test_a_copy_of_the_run_directory_needs_nothing_but_itself(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    _, one = verified(tmp_path / "a", files)
    shutil.move(tmp_path / "a", tmp_path / "b")
    done = harness.call("verify", tmp_path / "b" / "bundle", "--json", cwd=tmp_path)
    (other,) = json.loads(done.stdout)
    assert (other["bundle_id"], other["checks"]) == (one["bundle_id"], one["checks"])
