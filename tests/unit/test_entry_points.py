"""Entry points that libraries load by themselves: none in a process without plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import llmb

#: Leaves a file wherever it is imported.
CODE = """
import os
open(os.environ["SEEN"], "w").close()
plugin = None
def load():
    pass
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package that pydantic and torch import by themselves."""
    site = tmp_path / "site"
    info = site / "acme-1.dist-info"
    info.mkdir(parents=True)
    (site / "acme.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[pydantic]\nacme = acme:plugin\n[torch.backends]\nacme = acme:load\n"
    )
    return site


def is_imported(site: Path, statements: str, **variables: str) -> bool:
    """Tell whether Python imports the package while it executes ``statements``."""
    seen, root = site / "seen", Path(llmb.__file__).parent.parent
    paths = {"SEEN": str(seen), "PYTHONPATH": f"{site}{os.pathsep}{root}"}
    subprocess.run([sys.executable, "-c", statements], env={**os.environ, **paths, **variables})
    return seen.exists()


@pytest.mark.parametrize("value", ["", "nobody"])
def test_pydantic_imports_no_plugin_of_its_own_in_a_process_of_llmb(site: Path, value: str) -> None:
    model = "from pydantic import BaseModel\nclass One(BaseModel): pass\n"
    assert is_imported(site, model, PYDANTIC_DISABLE_PLUGINS=value)
    (site / "seen").unlink()
    ours = f"import llmb.config\n{model}"
    assert not is_imported(site, ours, PYDANTIC_DISABLE_PLUGINS=value)


@pytest.mark.full
def test_torch_imports_no_vendors_package_while_it_is_alone(site: Path) -> None:
    statements = "from llmb.config import torch_alone\nwith torch_alone():\n    import torch\n"
    assert is_imported(site, "import torch", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    (site / "seen").unlink()
    assert not is_imported(site, statements, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
