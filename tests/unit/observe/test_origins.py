"""Whose a file is, by where it lies and what the packages say of themselves."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import llmb.processes.worker
from llmb.observe.origins import Origins
from tests.unit.builders_runtime import install

FILES = {"acme_llmb/__init__.py": "", "acme_kernels/__init__.py": ""}


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A plugin of two packages, a library that it needs, and a package that nobody needs.

    Their folder is first on ``sys.path``; what is imported from it is forgotten afterwards.
    """
    site = tmp_path_factory.mktemp("site")
    info = install(site, "llmb-acme", {"acme": "acme_llmb"}, FILES)
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-runtime; extra == 'fast'\nProvides-Extra: fast\n")
    (info / "top_level.txt").write_text("acme_llmb\nacme_kernels\n")
    for name in ("acme-runtime", "bystander"):
        module = name.replace("-", "_")
        made = install(site, name, {}, {f"{module}/__init__.py": ""})
        (made / "top_level.txt").write_text(f"{module}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site), *sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        yield site
    sys.modules.pop("acme_runtime", None)


@pytest.fixture(scope="module")
def origins(acme: Path) -> Origins:
    return Origins("acme_llmb", "llmb-acme")


@pytest.mark.parametrize(
    ("file", "origin", "distribution"),
    [
        ("acme_llmb/__init__.py", "plugin", "llmb-acme"),
        ("acme_kernels/fast.so", "plugin", "llmb-acme"),
        ("acme_runtime/core.py", "library", "acme-runtime"),
        ("acme_runtime.libs/libfast-1a2b.so", "library", "acme-runtime"),
        ("bystander/x.py", "other", "bystander"),
        ("sitecustomize.py", "unknown", None),
    ],
)
def test_a_file_in_a_folder_of_packages_is_its_packages(
    acme: Path, origins: Origins, file: str, origin: str, distribution: str | None
) -> None:
    place = origins.of(str(acme / file))
    assert (place.origin, place.distribution, place.name) == (origin, distribution, file)


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        (llmb.processes.worker.__file__, "llmb"),
        (torch.__file__, "needed"),
        (str(Path(torch.__file__).parent / "lib" / "libtorch.so"), "needed"),
        (numpy.__file__, "needed"),
        (os.__file__, "python"),
        ("<frozen importlib._bootstrap>", "python"),
        ("/usr/lib/x86_64-linux-gnu/libvendor.so.1", "system"),
        ("/opt/vendor/lib/libvendor.so", "system"),
        ("/dev/accelerator0", "system"),
        ("/dev/shm/evil.so", "unknown"),
        ("/tmp/elsewhere.py", "unknown"),
        ("/tmp/gone.so (deleted)", "unknown"),
        ("<string>", "unknown"),
    ],
)
def test_everything_else_is_told_by_where_it_lies(origins: Origins, file: str, origin: str) -> None:
    assert origins.of(file).origin == origin


def test_no_place_on_this_machine_is_told(acme: Path, origins: Origins) -> None:
    assert origins.of("/tmp/somebody/elsewhere.py").name == "elsewhere.py"
    assert origins.of(torch.__file__).name == "torch/__init__.py"


def test_a_product_of_torchs_compiler_is_known_by_the_folder_it_was_told(
    origins: Origins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert origins.of(str(tmp_path / "ab" / "cabcd.so")).origin == "compiler"


def test_a_module_is_its_packages(origins: Origins) -> None:
    importlib.import_module("acme_runtime")
    assert origins.of_module("acme_runtime").origin == "library"
    assert origins.of_module("json").origin == "python"
    assert origins.of_module("time").origin == "python"
    assert origins.of_module("torch.nn.functional").origin == "needed"
    assert origins.of_module("nobody").origin == "unknown"


def test_a_built_in_plugin_is_llmbs() -> None:
    origins = Origins("llmb.plugin.builtin.cpu", "llmb")
    assert origins.libraries == set()
    assert origins.of(sys.modules["llmb.plugin.backend"].__file__ or "").origin == "llmb"


def test_sources_that_were_installed_in_place_are_their_packages(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, sources = tmp_path / "site", tmp_path / "sources"
    shutil.copytree(acme, site)
    (sources / "acme_more").mkdir(parents=True)
    url = {"url": sources.as_uri(), "dir_info": {"editable": True}}
    (site / "llmb_acme-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    monkeypatch.setattr(sys, "path", [str(site), str(sources), *sys.path])
    place = Origins("acme_llmb", "llmb-acme").of(str(sources / "acme_more" / "x.py"))
    assert (place.origin, place.distribution) == ("plugin", "llmb-acme")
