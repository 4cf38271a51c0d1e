"""A file behind a link is a package's where the package records the file with its digest."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import llmb
from llmb.observe import recorded_files
from llmb.observe.origins import Origins
from llmb.observe.recorded_files import RecordedFiles
from tests.unit.builders_runtime import install

CORE, CODE = "acme_runtime/core.py", "FAST = True\n"


def row(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text)}\n"


@pytest.fixture
def cached(site: Path, tmp_path: Path) -> Path:
    """Return the file of a library in a cache; the library's folder holds a link to the file."""
    info = install(site, "llmb-acme", {"acme": "acme_llmb"}, {"acme_llmb/__init__.py": ""})
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-runtime\n")
    library = install(site, "acme-runtime", {})
    (library / "RECORD").write_text(row(CORE, CODE))
    file = tmp_path / "cache" / CORE
    file.parent.mkdir(parents=True)
    file.write_text(CODE)
    (site / CORE).parent.mkdir()
    (site / CORE).symlink_to(file)
    importlib.invalidate_caches()
    return file


def found(file: Path | str) -> tuple[str, str | None, str]:
    place = Origins("acme_llmb", "llmb-acme").of(str(file))
    return place.origin, place.distribution, place.name


def test_a_link_to_a_recorded_file_and_the_file_itself_are_the_packages(
    cached: Path, site: Path
) -> None:
    assert found(site / CORE) == ("library", "acme-runtime", CORE)
    assert found(cached) == ("library", "acme-runtime", CORE)  # as the linker names a library


def test_a_file_in_a_linked_folder_is_the_packages(cached: Path, site: Path) -> None:
    (site / CORE).unlink()
    (site / CORE).parent.rmdir()
    (site / CORE).parent.symlink_to(cached.parent)
    assert found(site / CORE)[0] == "library"


def test_a_linked_file_is_its_packages_though_the_cache_lies_in_the_plugins_sources(
    cached: Path, site: Path
) -> None:
    url = f'{{"url": "{cached.parents[2].as_uri()}", "dir_info": {{"editable": true}}}}'
    (site / "llmb_acme-1.0.dist-info" / "direct_url.json").write_text(url)
    assert found(site / CORE)[0] == "library"
    assert found(cached.with_name("more.py"))[0] == "plugin"


def test_a_link_to_other_content_than_the_recorded_is_unknown(cached: Path, site: Path) -> None:
    cached.write_text("FAST = 'by cheating'\n")
    assert found(site / CORE)[0] == "unknown"


def test_a_link_that_the_package_does_not_record_is_unknown(cached: Path, site: Path) -> None:
    strange = cached.with_name("strange.py")
    strange.write_text(CODE)
    (site / "acme_runtime" / "strange.py").symlink_to(strange)
    assert found(site / "acme_runtime" / "strange.py")[0] == "unknown"


def test_a_copy_of_a_recorded_file_that_no_link_leads_to_is_unknown(
    cached: Path, tmp_path: Path
) -> None:
    copy = tmp_path / cached.name
    copy.write_text(CODE)
    assert found(copy)[0] == "unknown"


def test_a_file_recorded_without_a_digest_or_outside_the_folder_is_unknown(
    cached: Path, site: Path
) -> None:
    outside = os.path.relpath(cached, site)
    (site / "acme_runtime-1.0.dist-info" / "RECORD").write_text(f"{CORE},,\n{row(outside, CODE)}")
    assert found(site / CORE)[0] == "unknown"


def test_a_deleted_library_is_unknown_though_a_recorded_file_has_taken_its_place(
    cached: Path,
) -> None:
    assert found(f"{cached} (deleted)")[0] == "unknown"


@pytest.mark.parametrize(
    ("record", "url", "file", "belongs"),
    [
        ("acme/a.py,{digest},\n", "", "acme/a.py", True),
        ("acme/a.py,sha256=other,\n", "", "acme/a.py", False),
        ("acme/a.py,,\n", "", "acme/a.py", False),
        ("acme/b.so,,\n", "", "acme/b.so", True),
        ("acme/a.py,{digest},\n", "", "acme/b.so", False),
        ("acme/a.py,{digest},\n", "", "acme/a.py:codegen(f)", True),
        ("", "", "acme/b.so", True),
        ("acme/a.py,{digest},\n", "", "../more/c.py", False),
        ("acme/a.py,{digest},\n", "more", "../more/c.py", True),
    ],
)
def test_a_package_has_the_files_that_were_installed_with_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, record: str, url: str, file: str, *, belongs: bool
) -> None:
    for name in ("acme/a.py", "acme/b.so", "../more/c.py"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(CODE)
    info = install(site, "acme", {})
    (info / "RECORD").write_text(record.format(digest=row("a", CODE).split(",")[1]))
    if url:
        folder = (site.parent / url).resolve().as_uri()
        (info / "direct_url.json").write_text(
            f'{{"url": "{folder}", "dir_info": {{"editable": true}}}}'
        )
    known = {"acme": PathDistribution(info)}
    monkeypatch.setattr(recorded_files, "_AT_FIRST", known)
    assert RecordedFiles().belongs((site / file).resolve(), "acme") is belongs
    assert not RecordedFiles().belongs((site / file).resolve(), "other")


def test_a_file_that_another_package_puts_into_llmbs_folder_is_not_llmbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(llmb.__file__).parent
    digest = row("a", (folder / "__init__.py").read_text()).split(",")[1]
    info = tmp_path / "llmb-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"llmb/__init__.py,{digest},\n")
    package = PathDistribution(info)
    monkeypatch.setattr(package, "locate_file", lambda name: folder.parent / name)
    assert Origins("tests", "llmb-tests").of(str(folder / "config.py")).origin == "llmb"
    monkeypatch.setattr(recorded_files, "_AT_FIRST", {"llmb": package})
    assert Origins("tests", "llmb-tests").of(str(folder / "__init__.py")).origin == "llmb"
    assert Origins("tests", "llmb-tests").of(str(folder / "config.py")).origin != "llmb"
