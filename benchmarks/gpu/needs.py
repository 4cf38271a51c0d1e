"""Names the packages that are missing, before anything starts, and how to fetch their wheels.

    python needs.py cuda       prints one line and ends with 3 where a package is missing

Only the standard library and pip's own parts are used: ``packaging`` may be one of the missing.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
#: No stage draws a figure. Of one device there is no interval of an efficiency either. Their wheels
#: are 60 MB.
FIGURES, INTERVALS = {"matplotlib"}, {"scipy"}
#: Extras of the plugin that a stage or a figure needs: FP8, energy and clocks.
EXTRAS = ("fp8", "nvml")
#: What these need themselves is their vendor's business.
VENDORS = {"torch", "llmb"}


def required(plugin: str) -> list[str]:
    """Return what pyproject.toml asks for: llmb's, and the plugin's if it is a package here."""
    found = []
    for place in (ROOT, ROOT / f"plugins/llmb-{plugin}"):
        if (place / "pyproject.toml").exists():
            text = (place / "pyproject.toml").read_text(encoding="utf-8")
            project = tomllib.loads(text)["project"]
            found += project["dependencies"]
            extras = project.get("optional-dependencies", {})
            found += [each for extra in EXTRAS for each in extras.get(extra, ())]
    return found


def missing(wanted: list[str], leave: set[str]) -> list[str]:
    """Return names that are not there as ``wanted``, or as these need them; none of ``leave``."""
    lacking: dict[str, None] = {}
    todo, seen = list(wanted), set()
    while todo:
        each = Requirement(todo.pop(0))
        name = each.name.lower().replace("_", "-")
        applies = each.marker is None or each.marker.evaluate({"extra": ""})
        if not applies or name in leave | {"llmb"} or str(each) in seen:
            continue
        seen.add(str(each))
        try:
            there = distribution(name)
        except PackageNotFoundError:
            lacking[name] = None
            continue
        if not each.specifier.contains(there.version, prereleases=True):
            lacking[name] = None
        elif name not in VENDORS:
            todo += there.requires or ()
    return list(lacking)


def message(names: list[str]) -> str:
    """Return one line: what is missing here, and the command that fetches it elsewhere."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    tags = [f"--platform {tag}_{platform.machine()}" for tag in ("manylinux_2_28", "manylinux2014")]
    fetch = f"python3 -m pip download --only-binary=:all: --python-version {version} "
    fetch += f"{' '.join(tags)} -c constraints.txt -d wheels {' '.join(names)}"
    return f"missing here: {' '.join(names)}; fetch them with: {fetch}; then WHEELS=wheels run.sh"


def check(plugin: str, devices: str = "1", without: str = "") -> str | None:
    """Return the line to end with, None where nothing is missing but what ``without`` names."""
    leave = FIGURES | (INTERVALS if devices == "1" else set()) | {*without.split(",")}
    names = missing(required(plugin), leave)
    if "torch" in names:
        return "missing here: torch that sees the device: PYTHON=... names the Python that has it"
    return message(names) if names else None


if __name__ == "__main__":
    line = check(sys.argv[1])
    if line is not None:
        print(f"needs.py: {line}", file=sys.stderr)
        sys.exit(3)
