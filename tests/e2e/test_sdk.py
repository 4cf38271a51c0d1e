"""The vendor's way: a new package installs, runs and passes its own tests; faults are named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb.sdk.catalogue import AS_RUNS, CHECKS, IN_PROCESS
from llmb.sdk.examine import examine
from llmb.sdk.report import CheckReport
from llmb.supervision import negotiation
from tests.e2e import harness
from tests.e2e.harness import Ended

WITHOUT_RUNS = sorted({check.subject for check in IN_PROCESS})
Once = Callable[[str, Callable[[Path], Ended]], Ended]


# -- llmb plugin new --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def acme(once: Once) -> Ended:
    """What ``llmb plugin new acme`` said; its package lies in ``output``."""
    return once(
        "acme", lambda folder: _ended_in(folder, "plugin", "new", "acme", "--directory", "out")
    )


def _ended_in(folder: Path, *arguments: str) -> Ended:
    done = harness.call(*arguments, cwd=folder)
    return Ended(done.code, done.stdout, done.stderr, folder / "out")


@pytest.fixture(scope="session")
def acme_site(once: Once, acme: Ended) -> Path:
    """The folder into which pip has installed that package, unmodified."""

    def install(folder: Path) -> Ended:
        return harness.pip_install(acme.output, folder / "out")

    return once("acme-site", install).output


def test_plugin_new_says_what_it_wrote_and_what_to_do_next(acme: Ended) -> None:
    assert (acme.code, acme.stderr) == (0, "")
    for path in ("pyproject.toml", "llmb_acme/plugin.py", "tests/test_conformance.py"):
        assert path in acme.stdout
        assert (acme.output / path).is_file()
    for command in ("pip install -e", "llmb run --plugin acme", "pytest", "llmb plugin check acme"):
        assert command in acme.stdout


def test_plugin_new_overwrites_nothing(acme: Ended, tmp_path: Path) -> None:
    (tmp_path / "llmb-other").mkdir()
    (tmp_path / "llmb-other" / "mine").touch()
    done = harness.call("plugin", "new", "other", cwd=tmp_path)
    assert (done.code, len(done.said)) == (2, 1)
    assert "llmb-other is there already" in done.said[0]
    assert [p.name for p in tmp_path.rglob("*")] == ["llmb-other", "mine"]


@pytest.mark.parametrize("name", ["cpu", "Acme", "llmb-acme"])
def test_plugin_new_refuses_a_name_that_would_not_work(tmp_path: Path, name: str) -> None:
    done = harness.call("plugin", "new", name, cwd=tmp_path)
    assert (done.code, len(done.said)) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_new_package_is_installed_and_listed(acme_site: Path) -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(acme_site))
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    found = offers["acme"]
    assert (found["available"], found["distribution"]) == (True, "llmb-acme")
    assert found["options"] == {"compile": "none"}


def test_the_new_package_runs(acme_site: Path, tmp_path: Path) -> None:
    done = harness.run(
        tmp_path / "out",
        "--plugin=acme",
        *harness.TINY_RUN,
        "--precision=FP32",
        plugins=[acme_site],
    )
    assert (done.code, done.said) == (0, [])
    record = done.record
    assert record["plugin"]["name"] == "acme"
    assert [file["path"] for file in record["plugin"]["files"]] == [
        "llmb_acme/__init__.py",
        "llmb_acme/backend.py",
        "llmb_acme/plugin.py",
    ]


def test_the_new_package_passes_its_own_tests_as_written(acme: Ended, acme_site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(acme.output)],
        env=harness.environment(acme_site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    counted = {
        word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped)", done.stdout)
    }
    assert counted["passed"] + counted["skipped"] == len(CHECKS)
    assert counted["skipped"] <= 8, done.stdout


def test_the_new_package_drives_an_accelerator_as_written(acme_site: Path, fake_site: Path) -> None:
    env = harness.environment(acme_site, fake_site, FAKEDEV_KERNEL_US="200")
    flags = [f"--only={subject}" for subject in ("backend", "device", "model", "permitted")]
    done = harness.call("plugin", "check", "acme", "--quiet", *flags, env=env)
    assert done.code == 0, done.stdout
    assert done.stdout.startswith("llmb-acme 0.1.0 on fakedev, ")
    assert "synchronize waits for the device: waited" in done.stdout


def test_the_plugin_of_the_documentation_is_short_and_works_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    module, project = (
        next(b for b in re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) if word in b)
        for kind, word in (("python", "llmb_precisions"), ("toml", "entry-points"))
    )
    assert (module + project).count("\n") <= 16, "sixteen lines, says the page"
    source = tmp_path / "source"
    source.mkdir()
    (source / "llmb_acme.py").write_text(module)
    (source / "pyproject.toml").write_text(project)
    harness.pip_install(source, tmp_path / "site")
    env = harness.environment(tmp_path / "site")
    flags = [f"--only={subject}" for subject in WITHOUT_RUNS]
    done = harness.call("plugin", "check", "acme", "--quiet", *flags, env=env)
    assert done.code == 0, done.stdout


def test_a_plugin_that_fuses_weights_passes_by_its_parameter_map(example_site: Path) -> None:
    env = harness.environment(example_site)
    flags = [f"--only={subject}" for subject in WITHOUT_RUNS]
    done = harness.call("plugin", "check", "example", "--quiet", "--json", *flags, env=env)
    assert done.code == 0, done.stderr
    report = CheckReport.model_validate_json(done.stdout)
    assert report.outcome("model.parameter_writes").message == "21 views"
    assert report.outcome("hooks.environment_takes_effect").message == "TORCH_EXAMPLE_FUSE"


# -- one plugin, looked at from here ----------------------------------------------------------


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckReport]:
    """Return how a plugin made of a few lines fares; without runs unless they are asked for."""

    def examined(source: str, *only: str, limit_s: float = 60.0, **env: str) -> CheckReport:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "llmb_odd.py").write_text(textwrap.dedent(source))
        info = folder / "llmb_odd-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmb-odd\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text("[llmb]\nodd = llmb_odd\n")
        environment = harness.environment(folder, *map(Path, filter(None, [env.pop("also", "")])))
        monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(str(folder))
        return examine("odd", only=only or WITHOUT_RUNS, limit_s=limit_s)

    return examined


def failed(report: CheckReport) -> dict[str, str]:
    return {o.id: o.message for o in report.outcomes if o.status == "fail"}


#: As little as a vendor whose device torch knows must write.
MINIMAL = """\
from llmb.config import BF16, FP32
from llmb.plugin import hookimpl

@hookimpl
def llmb_precisions():
    return [BF16, FP32]
"""


def test_a_plugin_of_six_lines_that_prints_passes_every_check(
    check: Callable[..., CheckReport],
) -> None:
    noisy = MINIMAL.replace("    return", '    print("noise", flush=True)\n    return')
    report = check('import os\nos.write(1, b"{noise\\n")\n' + noisy)
    assert failed(report) == {}
    assert report.passed
    assert report.device == "cpu"
    assert report.count["pass"] > 30


FAULTY = """
import itertools, os
import torch
import torch.nn.functional as F
from llmb.config import FP32, Precision
from llmb.plugin import DeviceMemory, EnergyReading, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

torch.set_float32_matmul_precision("high")

true_linear, true_step = F.linear, torch.optim.AdamW.step
F.linear = lambda *a, **k: true_linear(*a, **k)
torch.optim.AdamW.step = lambda self, closure=None: true_step(self, closure)

class Backend(CpuBackend):
    joules = itertools.count(1000, -1)
    def memory(self):
        return DeviceMemory(total_bytes=0, available_bytes=0, peak_bytes=0)
    def energy(self):
        return EnergyReading(joules=next(self.joules), source="counter", scope="device")
    def versions(self):
        return {"driver": (1, 2)}

@hookimpl
def llmb_backend(config):
    return Backend()

@hookimpl
def llmb_precisions():
    return [FP32, Precision(name="BF17", bits=17, dtype="bfloat17")]

@hookimpl
def llmb_warmup_steps():
    return "three"

@hookimpl
def llmb_describe_system():
    return {"driver": 1 / 0}

@hookimpl
def llmb_post_process_model(model):
    os.environ["ACME_MODE"] = "fast"
    return model

class View:
    padding = ()
    def __init__(self, parameter): self.parameter = parameter
    def read(self, kind): return self.parameter.detach() if kind == "value" else self.parameter.grad
    def write(self, value): pass

@hookimpl
def llmb_parameter_map(model):
    return {n.replace("lm_head", "head"): View(p) for n, p in model.named_parameters()}

def llmb_patches():
    return []
"""
#: Check -> words of what it says of the faulty plugin.
FOUND = {
    "hooks.marked": ("llmb_patches", "@hookimpl"),
    "backend.versions": ("driver", "text"),
    "precisions.formats": ("BF17", "bfloat17"),
    "answers.warmup_steps": ("llmb_warmup_steps returned a str", "expected int"),
    "answers.describe_system": ("ZeroDivisionError", "llmb_odd.py"),
    "permitted.importing": ("fp32_precision", "'tf32'", "llmb_set_environment"),
    "device.memory": ("total_bytes is 0", "None"),
    "device.peak_memory": ("peak_bytes",),
    "device.available_memory": ("available_bytes stands at 0",),
    "device.energy": ("energy fell",),
    "model.parameter_names": ("22 parameters", "knows head.weight"),
    "model.parameter_writes": ("does not read back",),
    "model.optimizer": ("step is not torch's own",),
    "permitted.post_processing": ("ACME_MODE",),
    "permitted.declared_patches": ("torch.nn.functional.linear", "DeclaredPatch"),
    "permitted.forbidden_patches": ("torch.optim.adamw.AdamW.step",),
    "runs.agree": ("bfloat17",),
}


def test_every_fault_of_a_faulty_plugin_is_found_by_the_check_of_that_name(
    check: Callable[..., CheckReport],
) -> None:
    report = check(FAULTY, *WITHOUT_RUNS, "runs.agree")
    assert set(failed(report)) == set(FOUND)
    for name, words in FOUND.items():
        assert all(word in failed(report)[name] for word in words), failed(report)[name]
    assert not report.passed


def test_a_declared_patch_is_no_fault(check: Callable[..., CheckReport]) -> None:
    source = """
    import torch.nn.functional as F
    from llmb.config import FP32
    from llmb.plugin import DeclaredPatch, hookimpl
    true_linear = F.linear
    F.linear = lambda *a, **k: true_linear(*a, **k)

    @hookimpl
    def llmb_patches():
        return [DeclaredPatch(target="torch.nn.functional.l*", reason="counts calls")]
    """
    report = check(source, "permitted.declared_patches", "permitted.forbidden_patches")
    assert failed(report) == {}
    assert report.outcomes[0].message == "1 replaced and declared"


def test_an_import_that_hangs_is_a_failed_check_within_the_limit(
    check: Callable[..., CheckReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negotiation, "PROBE_LIMIT_S", 1.0)
    report = check(
        "import time\nprint('waiting for the licence server')\ntime.sleep(600)", limit_s=1.0
    )
    assert set(failed(report)) == {"hooks.loads"}
    assert "within 1 s" in failed(report)["hooks.loads"]
    assert {o.status for o in report.outcomes[1:]} == {"skip"}
    assert "not reached" in report.outcomes[1].message


@pytest.mark.parametrize(
    ("last_act", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("os._exit(0)", "ended early with exit status 0"),
    ],
    ids=["crash", "exit"],
)
def test_an_import_that_ends_the_process_is_a_failed_check(
    check: Callable[..., CheckReport], last_act: str, words: str
) -> None:
    prelude = "import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    report = check(prelude + last_act, *WITHOUT_RUNS, "runs")
    assert set(failed(report)) == {"hooks.loads", "runs.agree"}
    assert words in failed(report)["hooks.loads"]
    assert words in failed(report)["runs.agree"]
    assert not any(o.status == "pass" for o in report.outcomes)


def test_a_hook_that_ends_the_process_is_named_and_no_run_is_tried(
    check: Callable[..., CheckReport],
) -> None:
    source = MINIMAL + textwrap.dedent(
        """
        @hookimpl
        def llmb_post_process_model(model):
            import os
            os._exit(7)
        """
    )
    report = check(source, "hooks", "model", "runs")
    assert set(failed(report)) == {"model.post_processing"}
    assert "exit status 7" in failed(report)["model.post_processing"]
    assert report.outcome("model.gradients").message.startswith("not reached")
    assert report.outcome("runs.agree").status == "pass"
    assert "not tried" in report.outcome("runs.finish").message


def test_a_hook_that_does_not_exist_is_named_with_the_one_that_was_meant(
    check: Callable[..., CheckReport],
) -> None:
    report = check(MINIMAL.replace("llmb_precisions", "llmb_precision"), "hooks", "runs")
    assert "llmb_precisions" in failed(report)["hooks.loads"]
    assert "llmb_precision" in failed(report)["runs.agree"]


# -- a device that runs ahead -----------------------------------------------------------------

QUEUE = """
from llmb.config import FP32
from llmb.plugin import hookimpl
from llmb.plugin.kit.accelerator import Accelerator

class Backend(Accelerator):
    def synchronize(self):
        WAIT

@hookimpl
def llmb_backend(config):
    return Backend(config.device)

@hookimpl
def llmb_precisions():
    return [FP32]
"""


@pytest.mark.parametrize(
    ("wait", "found"),
    [("super().synchronize()", set()), ("pass", {"device.synchronize_waits"})],
    ids=["waits", "does not wait"],
)
def test_a_synchronize_that_does_not_wait_is_found_on_a_device_with_a_queue(
    check: Callable[..., CheckReport], fake_site: Path, wait: str, found: set[str]
) -> None:
    report = check(
        QUEUE.replace("WAIT", wait),
        "backend",
        "device",
        also=str(fake_site),
        FAKEDEV_KERNEL_US="400",
    )
    assert report.device == "fakedev"
    assert set(failed(report)) == found
    seen = report.outcome("device.synchronize_waits").message
    assert "before the work was done" in seen if found else seen.startswith("waited")


# -- llmb plugin check ------------------------------------------------------------------------


def test_plugin_check_prints_a_line_for_each_check_and_a_summary(acme_site: Path) -> None:
    env = harness.environment(acme_site)
    done = harness.call("plugin", "check", "acme", "--only=hooks", "--only=backend", env=env)
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("llmb-acme 0.1.0 on cpu, llmb ")
    assert "  ok    versions are text: cpu_capability" in done.stdout
    assert re.fullmatch(r"13 passed, 0 failed, 1 skipped in \d+ s", lines[-1])
    assert "checking: hooks" in done.stderr


def test_plugin_check_as_json_is_the_report(acme_site: Path) -> None:
    env = harness.environment(acme_site)
    flags = ("--only=hooks.options", "-O", "compile=default", "--json", "--quiet")
    done = harness.call("plugin", "check", "acme", *flags, env=env)
    report = CheckReport.model_validate_json(done.stdout)
    assert (done.code, done.stderr) == (0, "")
    assert (report.plugin, report.distribution, report.version) == ("acme", "llmb-acme", "0.1.0")
    assert report.options == {"compile": "default"}
    assert [(o.id, o.status) for o in report.outcomes] == [("hooks.options", "pass")]


def test_a_failed_check_ends_in_exit_code_8_and_names_itself(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "site", "odd", "def llmb_backend(config): pass")
    env = harness.environment(folder)
    done = harness.call("plugin", "check", "odd", "--only=hooks", "--quiet", env=env)
    assert (done.code, len(done.said)) == (8, 1)
    assert "fails 1 of 9 checks: hooks.marked" in done.said[0]
    assert "  FAIL  every function named like a hook is marked as one: llmb_backend" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["nowhere"], 3, "no plugin 'nowhere' is installed"),
        (["cpu", "--only=everything"], 2, "no check 'everything'"),
        (["cpu", "-O", "threads"], 2, "KEY=VALUE"),
        (["cpu", "-O", "speed=1", "--quiet"], 2, "no such option"),
    ],
)
def test_plugin_check_that_cannot_be_done_says_why(
    arguments: list[str], code: int, word: str
) -> None:
    done = harness.call("plugin", "check", *arguments)
    assert (done.code, len(done.said)) == (code, 1)
    assert word in done.said[0]


def test_a_plugin_without_its_device_is_checked_as_far_as_it_goes() -> None:
    report = examine("cpu", device="nowhere:0", only=["hooks", "backend", "runs"])
    assert report.device is None
    assert report.passed
    assert report.outcome("hooks.options").status == "pass"
    for check in (*AS_RUNS, *(c for c in IN_PROCESS if c.subject == "backend")):
        assert "no device here" in report.outcome(check.id).message


def test_nothing_of_the_runs_of_a_check_is_left_behind(
    check: Callable[..., CheckReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert failed(check(MINIMAL, "hooks.options", "runs.agree")) == {}
    assert os.listdir(tmp_path / "tmp") == []
    assert not (tmp_path / "runs").exists()
