"""``llmb doctor`` and ``llmb plugin list`` on machines that are whole, and on broken ones."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import harness
from tests.e2e.harness import Ended

no_accelerator = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="this machine has an accelerator"
)


def doctor(*arguments: str, plugins: tuple[Path, ...] = (), **env: str) -> Ended:
    done = harness.call("doctor", *arguments, env=harness.environment(*plugins, **env))
    assert (done.code, done.stderr) == (0, "")
    return done


def examined(*plugins: Path, **env: str) -> dict[str, Any]:
    return json.loads(doctor("--json", plugins=plugins, **env).stdout)


#: Where the built-in plugins are beside the point: two processes less.
ODD_ALONE = {"LLMB_LOAD_PLUGINS": "odd"}


def test_a_whole_machine_is_described_in_plain_text_from_llmb_to_what_is_missing() -> None:
    text = doctor().stdout
    for name in ("llmb", "reference", "python", "cpu", "memory", "free disk", "torch"):
        assert any(line.startswith(f"{name} ") for line in text.splitlines()), name
    assert "as published" in text
    assert torch.__version__ in text
    assert f"git_version {torch.version.git_version}" in text
    assert "plugin cpu    ready, llmb" in text
    assert "\x1b" not in text


def test_as_json_it_holds_the_same_for_a_machine() -> None:
    found = examined()
    assert found["schema"] == "llmb.doctor/1"
    assert found["torch"]["version"] == torch.__version__
    assert found["torch"]["error"] is None
    assert found["torch"]["build"]["git_version"] == torch.version.git_version
    cpu = next(plugin for plugin in found["plugins"] if plugin["name"] == "cpu")
    assert (cpu["state"], cpu["facts"]["cpu_capability"] != "") == ("ready", True)
    assert {"torch", "numpy", "pluggy"} <= set(found["packages"])


def test_neither_secrets_nor_names_nor_places_are_in_what_is_pasted(tmp_path: Path) -> None:
    source = """
    import getpass, pathlib, platform
    secret = os.environ["ACME_TOKEN"]
    raise RuntimeError(
        f"{getpass.getuser()}@{platform.node()}: {pathlib.Path.home()}/acme.so refused {secret}"
    )
    """
    folder = harness.plugin(tmp_path, "odd", source)
    home = tmp_path / "gertrude"
    home.mkdir()
    variables = {
        "ACME_TOKEN": "hunter2hunter2",
        "TORCH_HUB_TOKEN": "s3cr3ts3cr3t",
        "OMP_DISPLAY_ENV": f"{home}/x",
        "HOME": str(home),
        "USER": "gertrude",
        "LOGNAME": "gertrude",
    }
    for arguments in ((), ("--json",)):
        text = doctor(*arguments, plugins=(folder,), **variables, **ODD_ALONE).stdout
        assert "<user>@" in text
        assert "~/acme.so refused (redacted)" in text
        host = [platform.node()] if len(platform.node()) > 2 else []
        for name in ("gertrude", "hunter2", "s3cr3t", str(home), *host):
            assert name not in text


# -- a torch that is broken -------------------------------------------------------------------


def shadow_torch(folder: Path, statement: str) -> Path:
    """Put a torch in front of the installed one that does ``statement`` when it is imported."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"import os, signal, sys\n{statement}\n")
    return folder


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'"),
        ("raise ImportError('libtorch.so: undefined symbol: x')", "libtorch.so: undefined symbol"),
        ("os._exit(5)", "exit status 5"),
        ("os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
    ],
    ids=["not there", "wrong library", "exit", "illegal instruction"],
)
def test_a_torch_that_cannot_be_imported_is_what_is_missing_and_all_else_is_still_shown(
    tmp_path: Path, statement: str, words: str
) -> None:
    found = examined(shadow_torch(tmp_path, statement))
    assert found["torch"]["version"] is None
    assert words in found["torch"]["error"]
    assert {plugin["state"] for plugin in found["plugins"]} == {"broken"}
    (line,) = (line for line in found["missing"] if words in line)
    assert "cannot be imported" in line
    assert found["choice"] is None
    assert found["host"]["cpu"]["usable_cores"] > 0


def test_a_run_without_a_usable_torch_is_one_line_with_code_3(tmp_path: Path) -> None:
    folder = shadow_torch(tmp_path / "site", "raise ImportError('libtorch.so: not found')")
    done = harness.run(tmp_path / "out", *harness.TINY_RUN, plugins=[folder])
    assert (done.code, len(done.said)) == (3, 1)
    assert "(cpu, generic: cannot be probed" in done.said[0]
    assert "libtorch.so: not found" in done.said[0]
    assert "llmb doctor" in done.said[0]


def extension(folder: Path, name: str, statement: str, *requirements: str) -> Path:
    """Install code that torch loads by itself, and that does ``statement`` then."""
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(f"import os\ndef load():\n    {statement}\n")
    needs = "".join(f"Requires-Dist: {line}\n" for line in requirements)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{needs}")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {name}:load\n")
    return folder


def test_an_extension_that_breaks_import_torch_is_named_with_its_reason_and_the_way_around_it(
    tmp_path: Path,
) -> None:
    sound = extension(tmp_path / "sound", "calm", "pass")
    broken = extension(tmp_path / "broken", "acmedev", "raise OSError('libacme.so: not found')")
    found = examined(sound, broken)
    facts = found["torch"]
    assert "Failed to load the backend extension: acmedev" in facts["error"]
    assert "OSError: libacme.so: not found" in facts["error"]
    assert facts["version"] == torch.__version__, "torch itself is sound, and described"
    (line,) = (line for line in found["missing"] if "acmedev" in line)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in line
    assert "calm" not in line
    names = {(e["name"], e["distribution"], e["version"]) for e in facts["extensions"]}
    assert {("calm", "calm", "1.5"), ("acmedev", "acmedev", "1.5")} <= names

    freed = examined(sound, broken, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (freed["torch"]["error"], freed["torch"]["autoload"]) == (None, "0")
    assert not any("acmedev" in line for line in freed["missing"])


def test_a_package_that_needs_another_torch_is_told_as_such(tmp_path: Path) -> None:
    needs = ("torch==1.13.1", "acme-runtime>=3", "numpy")
    lines = examined(extension(tmp_path, "acmedev", "pass", *needs))["missing"]
    (pairing,) = (line for line in lines if "torch==1.13.1" in line)
    assert f"installed is {torch.__version__}" in pairing
    assert any("acme-runtime>=3, which is not installed" in line for line in lines)
    assert not any("numpy" in line for line in lines)


# -- plugin list ------------------------------------------------------------------------------

NO_DEVICE = """
from llmb.plugin.builtin.cpu import CpuBackend
class Acme(CpuBackend):
    device_type = "acme"
    def is_available(self):
        return False
@hookimpl
def llmb_backend(config):
    return Acme()
"""
OFFERING = """
from llmb.config import Precision, Refused
from llmb.plugin import PluginOption
from llmb.plugin.builtin.cpu import CpuBackend
@hookimpl
def llmb_backend(config):
    return CpuBackend()
@hookimpl(tryfirst=True)
def llmb_precisions():
    slow = FP32.model_copy(update={"native": False})
    return [slow, Refused(name="FP8", reason="the card is of an older kind")]
@hookimpl
def llmb_options():
    return [PluginOption(name="fuse", default="mlp", choices=("mlp", "none"), help="what to fuse")]
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Install one plugin that works, one that finds no device, and one that is broken."""
    folder = tmp_path_factory.mktemp("three")
    long_reason = "import acme_runtime_" + "x" * 300
    return (
        harness.plugin(folder / "a", "able", OFFERING),
        harness.plugin(folder / "b", "lonely", NO_DEVICE),
        harness.plugin(folder / "c", "odd", long_reason),
    )


@pytest.fixture(scope="module")
def listing(three: tuple[Path, ...]) -> str:
    """What is listed of the three."""
    return listed(*three)


def listed(*plugins: Path, **env: str) -> str:
    done = harness.call("plugin", "list", env=harness.environment(*plugins, **env))
    assert (done.code, done.stderr) == (0, "")
    return done.stdout


def test_each_plugin_is_listed_with_its_state_and_what_it_offers(listing: str) -> None:
    lines = listing.splitlines()
    states = {line.split()[0]: line for line in lines if not line.startswith((" ", "hint"))}
    assert "ready" in states["able"]
    assert "llmb-able 0.1" in states["able"]
    assert "no device" in states["lonely"]
    assert "broken" in states["odd"]
    text = "\n".join(lines)
    for words in (
        "FP32 (slow)",
        "no FP8: the card is of an older kind",
        "-O fuse=mlp (of mlp, none)  what to fuse",
        "no acme device was found",
        "No module named 'acme_runtime_" + "x" * 300 + "'",
    ):
        assert words in text


def test_nothing_is_cut_off_or_broken_into_lines_in_a_pipe(
    three: tuple[Path, ...], listing: str
) -> None:
    assert _without_formats(listed(*three, COLUMNS="40")) == _without_formats(listing)


def _without_formats(listing: str) -> list[str]:
    """Leave out the formats: plugin cpu measures which is faster, and a busy machine may differ."""
    return [line for line in listing.splitlines() if not line.startswith("  formats ")]


@no_accelerator
def test_without_an_accelerator_the_list_ends_with_what_could_be_done(listing: str) -> None:
    hints = [line for line in listing.splitlines() if line.startswith("hint: ")]
    assert f"torch {torch.__version__} sees no accelerator" in hints[0]
    assert "llmb doctor" in hints[0]


def test_as_json_every_offer_has_its_state(three: tuple[Path, ...]) -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(*three))
    offers = json.loads(done.stdout)
    assert [offer["plugin"] for offer in offers][:3] == ["able", "lonely", "odd"]
    assert [offer["state"] for offer in offers][:3] == ["ready", "no device", "broken"]
    assert offers[0]["refused"] == [{"name": "FP8", "reason": "the card is of an older kind"}]


def test_the_variable_restricts_the_list_and_the_doctor_tells_what_it_leaves_out(
    three: tuple[Path, ...],
) -> None:
    restricted = listed(*three, LLMB_LOAD_PLUGINS="able")
    assert "able" in restricted
    assert "lonely" not in restricted
    assert listed(*three, LLMB_LOAD_PLUGINS="").split()[0] == "cpu"
    found = examined(*three, LLMB_LOAD_PLUGINS="able,nobody")
    assert {"lonely (llmb-lonely)", "odd (llmb-odd)"} <= set(found["restriction"]["left_out"])
    assert any("'nobody'" in line for line in found["missing"])
    assert not any("odd" in line for line in found["missing"])


def test_what_a_plugin_calls_itself_cannot_move_a_terminal(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path, "odd", "raise RuntimeError('\\x1b[2J\\x1b]0;gone\\x07')")
    for text in (listed(folder, **ODD_ALONE), doctor(plugins=(folder,), **ODD_ALONE).stdout):
        assert "\x1b" not in text
        assert r"\x1b[2J" in text
