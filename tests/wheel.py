"""Is the wheel the folder llmb and nothing else, and the archive what a build and its tests need?

    python -m build && python tests/wheel.py dist

Only the standard library is used: the workflow and tox call this file before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Files and folders of the source archive, beside PKG-INFO and what hatchling adds.
SOURCE = {
    *("llmb", "tests", "examples"),
    *("CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "constraints.txt", "tox.ini"),
    *("pyproject.toml", "PKG-INFO", ".gitignore"),
}


def package() -> set[str]:
    """Return the files of the folder llmb, without compiled ones."""
    files = (path for path in (ROOT / "llmb").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def version() -> str:
    """Return the version, from the only place that has one."""
    text = (ROOT / "llmb" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return found


def faults_of_wheel(names: set[str]) -> Iterator[str]:
    """Yield each fault of a wheel with the files ``names``."""
    info = f"llmb-{version()}.dist-info"
    own = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    expected = package() | {f"{info}/{name}" for name in own}
    yield from (f"the wheel lacks {name}" for name in sorted(expected - names))
    yield from (f"the wheel has {name}, which is not llmb's" for name in sorted(names - expected))


def faults_of_source(names: set[str]) -> Iterator[str]:
    """Yield each fault of a source archive with the files ``names``."""
    top = f"llmb-{version()}"
    strange = {name for name in names if name.split("/")[0] != top}
    inner = {name.partition("/")[2] for name in names - strange}
    yield from (f"the archive has {name}, outside of {top}" for name in sorted(strange))
    yield from (f"the archive lacks {name}" for name in sorted(package() - inner))
    parts = {name.split("/")[0] for name in inner if name}
    yield from (f"the archive has {name}" for name in sorted(parts - SOURCE))
    yield from (f"the archive lacks {name}" for name in sorted(SOURCE - parts))
    yield from (f"the archive has {n}" for n in sorted(inner) if n.endswith((".pyc", ".gpu")))


def main(folder: Path) -> int:
    """Print every fault of the wheel and the source archive in ``folder``; return 1 if any."""
    (wheel,) = folder.glob("llmb-*.whl")
    (source,) = folder.glob("llmb-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        found = list(faults_of_wheel(set(archive.namelist())))
    with tarfile.open(source) as archive:
        found += faults_of_source({m.name for m in archive.getmembers() if m.isfile()})
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
