"""The containers, without an engine: what is written, and how an engine would be called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import llmb
from tests import patience

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = {"nvidia": "llmb-cuda", "amd": "llmb-rocm", "intel": "llmb-xpu", "cpu": None}
NODES = {
    "nvidia": ["nvidiactl"],
    "amd": ["kfd", "dri/renderD128", "dri/renderD129"],
    "intel": ["dri/renderD128"],
    "cpu": [],
}
# Everything a launch.sh may call: neither docker nor podman of this machine is among them.
TOOLS = ["bash", "cat", "dirname", "env", "mkdir", "sed", "sort", "stat"]
UID, GID = 1234, 2345
every_vendor = pytest.mark.parametrize("vendor", sorted(PLUGINS))
every_gpu = pytest.mark.parametrize("vendor", ["amd", "intel", "nvidia"])


@dataclass(frozen=True)
class Dockerfile:
    instructions: list[tuple[str, str]]

    @classmethod
    def of(cls, vendor: str) -> Dockerfile:
        text = (ROOT / "docker" / vendor / "Dockerfile").read_text(encoding="utf-8")
        text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
        lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
        return cls([(name, " ".join(rest.split())) for name, rest in lines])

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


@every_vendor
def test_the_base_image_is_pinned_to_one_exact_tag_of_a_named_registry(vendor: str) -> None:
    (base,) = Dockerfile.of(vendor).all("FROM")
    assert re.fullmatch(r"(docker|nvcr)\.io/[\w/-]+:[\w.-]*\d+\.\d+[\w.-]*", base)
    assert "latest" not in base


@every_vendor
def test_the_page_names_the_base_image_that_is_used(vendor: str) -> None:
    (base,) = Dockerfile.of(vendor).all("FROM")
    page = (ROOT / "docker" / "README.md").read_text(encoding="utf-8")
    assert f"| `{re.sub(r'^docker.io/(library/)?', '', base)}` |" in page


@every_vendor
def test_the_image_ends_as_a_user_that_is_not_root(vendor: str) -> None:
    assert int(Dockerfile.of(vendor).all("USER")[-1]) > 0


@every_vendor
def test_the_entry_point_is_llmb(vendor: str) -> None:
    assert Dockerfile.of(vendor).all("ENTRYPOINT") == ['["llmb"]']


@every_vendor
def test_an_image_holds_llmb_and_the_plugin_of_its_vendor_and_no_other(vendor: str) -> None:
    (command,) = (run for run in Dockerfile.of(vendor).all("RUN") if " . " in run)
    found = re.findall(r"\./plugins/([\w-]+)", command)
    assert found == ([PLUGINS[vendor]] if PLUGINS[vendor] else [])


@every_gpu
def test_the_extras_that_an_image_asks_for_exist(vendor: str) -> None:
    text = " ".join(Dockerfile.of(vendor).all("RUN"))
    (extras,) = re.findall(rf"\./plugins/{PLUGINS[vendor]}(?:\[([\w,]+)\])?", text)
    project = ROOT / "plugins" / str(PLUGINS[vendor]) / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    for extra in filter(None, extras.split(",")):
        assert re.search(rf"^{extra} = \[", text, re.MULTILINE)


@every_vendor
def test_whatever_pip_installs_is_held_to_a_torch(vendor: str) -> None:
    installs = re.findall(r"pip install [^&]*", " ".join(Dockerfile.of(vendor).all("RUN")))
    assert installs
    assert all("--constraint" in each or "torch==" in each for each in installs)


def test_the_build_context_is_a_list_of_what_goes_in_and_all_of_it_exists() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    admitted = [rule[1:] for rule in rules if rule.startswith("!")]
    assert {"llmb", "plugins", "pyproject.toml", "README.md", "LICENSE"} <= set(admitted)
    assert all((ROOT / name).exists() for name in admitted)


@dataclass(frozen=True)
class Launch:
    """What came of a launch.sh: its process, and the calls of the engine."""

    process: subprocess.CompletedProcess[str]
    calls: list[list[str]]
    folder: Path

    @property
    def verbs(self) -> list[str]:
        """The calls that do something."""
        return [call[0] for call in self.calls if call[0] in ("build", "run")]

    @property
    def run(self) -> list[str]:
        (call,) = (call for call in self.calls if call[0] == "run")
        return call

    @property
    def flags(self) -> str:
        """The flags of the run before the name of the image, with spaces around each."""
        image = next(i for i, word in enumerate(self.run) if word.startswith("llmb-"))
        return f" {' '.join(self.run[1:image])} "

    @property
    def passed_on(self) -> list[str]:
        image = next(i for i, word in enumerate(self.run) if word.startswith("llmb-"))
        return self.run[image + 1 :]


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Launch]:
    """Run a launch.sh where only ``TOOLS`` and an engine that writes its arguments down exist."""

    def run(
        vendor: str,
        *arguments: str,
        engine: str | None = "docker",
        version: str = "Docker version 28.0",
        answers: bool = True,
        image_exists: bool = True,
        nodes: list[str] | None = None,
        uid: int = UID,
        exit_code: int = 0,
        **variables: str,
    ) -> Launch:
        tools, log, here = tmp_path / "tools", tmp_path / "log", tmp_path / "here"
        tools.mkdir()
        here.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found
            (tools / name).symlink_to(found)
        script(tools / "id", f"case $1 in -u) echo {uid} ;; -g) echo {GID} ;; esac")
        if engine is not None:
            lines = [
                f"{{ printf '%s\\x1f' \"$@\"; printf '\\x1e'; }} >> '{log}'",
                'case "$1 ${2:-}" in',
                f"    '--version '*) echo '{version}' ;;",
                f"    'version '*) exit {0 if answers else 1} ;;",
                f"    'image inspect') exit {0 if image_exists else 1} ;;",
                f"    'run '*) exit {exit_code} ;;",
                "esac",
            ]
            script(tools / engine, "\n".join(lines))
        for node in NODES[vendor] if nodes is None else nodes:
            path = tmp_path / "dev" / node
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        process = patience.run(
            [str(ROOT / "docker" / vendor / "launch.sh"), *arguments],
            cwd=here,
            env={"PATH": str(tools), "DEV_DIR": str(tmp_path / "dev"), **variables},
        )
        written = log.read_text(encoding="utf-8") if log.exists() else ""
        calls = [call.split("\x1f")[:-1] for call in written.split("\x1e")[:-1]]
        return Launch(process, calls, here)

    return run


def assert_one_line_and_exit_code_3(done: Launch, says: str) -> None:
    assert done.process.returncode == 3
    assert done.process.stdout == ""
    (line,) = done.process.stderr.splitlines()
    assert line.startswith("docker/")
    assert says in line


@every_vendor
def test_the_help_needs_no_engine_and_shows_an_example(
    vendor: str, launch: Callable[..., Launch]
) -> None:
    done = launch(vendor, "-h", engine=None)
    assert done.process.returncode == 0
    assert f"docker/{vendor}/launch.sh run --precision BF16" in done.process.stdout


def test_nothing_to_do_is_a_usage_error(launch: Callable[..., Launch]) -> None:
    done = launch("cpu")
    assert done.process.returncode == 2
    assert done.process.stderr.startswith("usage:")


@every_vendor
def test_without_an_engine_there_is_one_line_and_exit_code_3(
    vendor: str, launch: Callable[..., Launch]
) -> None:
    assert_one_line_and_exit_code_3(launch(vendor, "run", engine=None), "docker or podman")


def test_an_engine_that_was_named_and_is_not_there_is_not_replaced(
    launch: Callable[..., Launch],
) -> None:
    assert_one_line_and_exit_code_3(launch("cpu", "run", ENGINE="podman"), "docker or podman")


def test_an_engine_that_does_not_answer_is_one_line_and_exit_code_3(
    launch: Callable[..., Launch],
) -> None:
    assert_one_line_and_exit_code_3(launch("cpu", "run", answers=False), "docker does not answer")


@pytest.mark.parametrize(
    ("vendor", "nodes", "missing"),
    [
        ("nvidia", [], "/nvidiactl"),
        ("amd", ["dri/renderD128"], "/kfd"),
        ("amd", ["kfd"], "/dri/render*"),
        ("intel", ["dri/card0"], "/dri/render*"),
    ],
)
def test_without_a_device_nothing_is_built_or_run(
    vendor: str, nodes: list[str], missing: str, launch: Callable[..., Launch]
) -> None:
    done = launch(vendor, "run", nodes=nodes, image_exists=False)
    assert_one_line_and_exit_code_3(done, f"{missing} on this machine")
    assert done.verbs == []


@pytest.mark.parametrize(
    ("vendor", "wanted"),
    [
        ("nvidia", ["--gpus all", "--shm-size 8g", "--ulimit memlock=-1"]),
        ("amd", ["--device /dev/kfd", "--device /dev/dri", "--security-opt seccomp=unconfined"]),
        ("intel", ["--device /dev/dri"]),
    ],
)
def test_a_vendors_devices_get_their_flags(
    vendor: str, wanted: list[str], launch: Callable[..., Launch]
) -> None:
    flags = launch(vendor, "run").flags
    for flag in wanted:
        assert f" {flag} " in flags


def test_a_cpu_gets_no_device_and_no_privilege(launch: Callable[..., Launch]) -> None:
    flags = launch("cpu", "run").flags
    assert not re.search(r"--(device|gpus|group-add|security-opt|privileged|ulimit)", flags)


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_the_group_of_the_nodes_is_joined_once_and_by_number(
    vendor: str, launch: Callable[..., Launch], tmp_path: Path
) -> None:
    flags = launch(vendor, "run").flags
    (group,) = {(tmp_path / "dev" / node).stat().st_gid for node in NODES[vendor]}
    assert re.findall(r"--group-add (\S+)", flags) == [str(group)]


@every_vendor
def test_the_results_belong_to_the_caller(vendor: str, launch: Callable[..., Launch]) -> None:
    done = launch(vendor, "run")
    runs = done.folder / "runs"
    assert f" --user {UID}:{GID} " in done.flags
    assert f" --mount type=bind,source={runs},target=/bench/runs " in done.flags
    assert runs.is_dir()


@every_vendor
def test_the_arguments_reach_llmb_as_they_are(vendor: str, launch: Callable[..., Launch]) -> None:
    arguments = ["run", "-O", "note=two words", "", "--json", "-h"]
    done = launch(vendor, *arguments)
    assert done.passed_on == arguments
    assert f"llmb-{vendor}:{llmb.__version__}" in done.run


def test_the_exit_code_is_that_of_llmb(launch: Callable[..., Launch]) -> None:
    assert launch("cpu", "run", exit_code=5).process.returncode == 5


def test_variables_of_llmb_are_passed_on_and_others_are_not(launch: Callable[..., Launch]) -> None:
    flags = launch("cpu", "run", LLMB_COLOUR="no", SECRET="s").flags
    assert " --env LLMB_COLOUR " in flags
    assert "SECRET" not in flags


@every_vendor
def test_a_missing_image_is_built_from_the_root_of_the_repository(
    vendor: str, launch: Callable[..., Launch]
) -> None:
    done = launch(vendor, "run", image_exists=False)
    assert done.verbs == ["build", "run"]
    (build,) = (call for call in done.calls if call[0] == "build")
    assert Path(build[build.index("--file") + 1]) == ROOT / "docker" / vendor / "Dockerfile"
    assert build[build.index("--tag") + 1] == f"llmb-{vendor}:{llmb.__version__}"
    assert Path(build[-1]) == ROOT


def test_an_image_that_is_there_is_not_built(launch: Callable[..., Launch]) -> None:
    assert launch("cpu", "run").verbs == ["run"]


def test_build_with_a_command_builds_again_and_runs(launch: Callable[..., Launch]) -> None:
    done = launch("cpu", "--build", "run", "--quiet")
    assert done.verbs == ["build", "run"]
    assert done.passed_on == ["run", "--quiet"]


@every_gpu
def test_build_alone_needs_no_device(vendor: str, launch: Callable[..., Launch]) -> None:
    done = launch(vendor, "--build", nodes=[])
    assert done.process.returncode == 0
    assert done.verbs == ["build"]


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_podman_without_root_keeps_the_callers_uid_and_groups(
    vendor: str, launch: Callable[..., Launch]
) -> None:
    flags = launch(vendor, "run", engine="podman", version="podman version 5.6").flags
    assert " --userns keep-id " in flags
    assert re.findall(r"--group-add (\S+)", flags) == ["keep-groups"]


def test_podman_without_root_raises_no_limits(launch: Callable[..., Launch]) -> None:
    flags = launch("nvidia", "run", engine="podman", version="podman version 5.6").flags
    assert "--ulimit" not in flags


def test_podman_as_root_has_no_user_namespace(launch: Callable[..., Launch]) -> None:
    flags = launch("amd", "run", engine="podman", version="podman version 5.6", uid=0).flags
    assert "--userns" not in flags
    assert "keep-groups" not in flags


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_podman_is_known_by_what_it_says_and_gets_gpus_by_their_cdi_name(
    engine: str, launch: Callable[..., Launch]
) -> None:
    flags = launch("nvidia", "run", engine=engine, version="podman version 5.6").flags
    assert " --device nvidia.com/gpu=all " in flags
    assert "--gpus" not in flags


@every_vendor
def test_a_launch_script_can_be_executed(vendor: str) -> None:
    assert os.access(ROOT / "docker" / vendor / "launch.sh", os.X_OK)
