"""Makes llmb and its plugins importable from a folder, where nothing can be built or fetched.

``python link.py FOLDER llmb plugins/llmb-cuda ...``: copies the packages and writes the metadata
that an installation would, so that entry points are found through PYTHONPATH. A machine that has a
package index needs none of this: ``pip install . ./plugins/llmb-cuda``.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def link(folder: Path, source: str) -> None:
    """Put the package in ``source`` and its metadata into ``folder``."""
    place = ROOT if source == "llmb" else ROOT / source
    project = tomllib.loads((place / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["name"]
    package = name.replace("-", "_")
    version = project.get("version")
    if version is None:  # llmb's own stands in its package
        init = (place / package / "__init__.py").read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(.+)"', init, re.MULTILINE).group(1)
    shutil.copytree(place / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs(project)]
    (info / "METADATA").write_text("\n".join(metadata) + "\n")
    points = project.get("entry-points", {}).get("llmb", {})
    text = "".join(f"{point} = {module}\n" for point, module in points.items())
    (info / "entry_points.txt").write_text(f"[llmb]\n{text}")


def needs(project: dict) -> list[str]:
    """Return what the package requires: by that llmb finds the compiled parts of a plugin's."""
    found = [f"Requires-Dist: {each}" for each in project["dependencies"]]
    for extra, listed in project.get("optional-dependencies", {}).items():
        found.append(f"Provides-Extra: {extra}")
        found += [f'Requires-Dist: {each}; extra == "{extra}"' for each in listed]
    return found


if __name__ == "__main__":
    for project in sys.argv[2:]:
        link(Path(sys.argv[1]), project)
