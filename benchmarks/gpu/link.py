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

ROOT = Path(__file__).resolve().parents[2]


def link(folder: Path, source: str) -> None:
    """Put the package in ``source`` and its metadata into ``folder``."""
    project = ROOT if source == "llmb" else ROOT / source
    text = (project / "pyproject.toml").read_text()
    name = re.search(r'^name = "(.+)"', text, re.MULTILINE).group(1)
    given = re.search(r'^version = "(.+)"', text, re.MULTILINE)
    package = name.replace("-", "_")
    if given is None:  # llmb's own version stands in its package
        init = (project / package / "__init__.py").read_text()
        given = re.search(r'^__version__ = "(.+)"', init, re.MULTILINE)
    shutil.copytree(
        project / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
    )
    version = given.group(1)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = re.search(r"^\[project\.entry-points\.llmb\]\n(.+?)(?:\n\n|\Z)", text, re.M | re.S)
    if points:
        plain = points.group(1).replace('"', "")
        (info / "entry_points.txt").write_text(f"[llmb]\n{plain}\n")


if __name__ == "__main__":
    for project in sys.argv[2:]:
        link(Path(sys.argv[1]), project)
