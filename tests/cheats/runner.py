"""Installs a plugin of ``plugins/`` as a vendor's package would be, and runs it for real."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.e2e import harness
from tests.e2e.harness import Ended

HERE = Path(__file__).parent
PLUGINS = HERE / "plugins"
#: Files that some of them put beside their package, and further entry points, by plugin.
SHIPPED = HERE / "shipped"
NAME = "odd"
#: The smallest shapes at which what the cheats do can be expressed.
SHAPES = (
    "--hidden-size=64",
    "--intermediate-size=384",
    "--num-hidden-layers=2",
    "--num-attention-heads=4",
    "--sequence-length=32",
    "--timed-steps=20",
)


def act(plugin: str) -> str:
    """Return what ``plugin`` does: the docstring of its file."""
    text = ast.get_docstring(ast.parse((PLUGINS / f"{plugin}.py").read_text()))
    assert text is not None, plugin
    return text


def keep(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Keep what the tables of ``figures`` need of a record."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"audit": record["audit"], "precision": record["precision"]}
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1))


def install(folder: Path, plugin: str, *, native: bool, vendor: str | None = None) -> Path:
    """Make ``plugin`` a package of its own in ``folder``; return it, for PYTHONPATH.

    ``native``: it offers the formats of this processor, so that ceilings are measured, and not the
    same formats as ones it only emulates, which saves a few seconds. ``vendor``: it drives a device
    and offers its formats as this module's hooks do, such as ``llmb_cuda.plugin``.
    """
    package = folder / f"llmb_{NAME}"
    package.mkdir(parents=True)
    offered = "llmb.plugin.builtin.cpu" if native else ".kit"
    # First, so that a plugin can offer others.
    source = f"from {vendor or offered} import llmb_precisions\n"
    if vendor:
        source += f"from {vendor} import llmb_backend, llmb_options, llmb_optimizer_options\n"
    source += (PLUGINS / f"{plugin}.py").read_text()
    (package / "__init__.py").write_text(source)
    (package / "kit.py").write_text((PLUGINS / "kit.py").read_text())
    info = folder / f"llmb_{NAME}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llmb-{NAME}\nVersion: 0.1\n")
    shipped = SHIPPED / plugin
    more = shipped / "entry_points.txt"
    points = f"[llmb]\n{NAME} = llmb_{NAME}\n" + (more.read_text() if more.exists() else "")
    (info / "entry_points.txt").write_text(points)
    for file in shipped.glob("*.py"):
        shutil.copy(file, folder)
    return folder


def run(
    tmp_path: Path, plugin: str, precision: str, *flags: str, native: bool = False, **env: str
) -> Ended:
    """Run ``plugin`` at tiny shapes, or at those in ``flags``."""
    folder = install(tmp_path / "plugins", plugin, native=native)
    fixed = ("--plugin", NAME, "--device=cpu", f"--precision={precision}", "--batch-size=1")
    ended = harness.run(tmp_path / "out", *fixed, *SHAPES, *flags, plugins=[folder], **env)
    kept = os.environ.get("LLMB_KEEP_RECORDS")
    if kept and list(ended.output.glob("*/record.json")):
        keep(Path(kept), f"{plugin}-{precision}", ended.record)
    return ended
