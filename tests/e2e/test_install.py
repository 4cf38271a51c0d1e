"""What pip does with llmb on a machine that has a torch of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENDOR_VERSION = "2.14.0a0+vendor"


@pytest.fixture
def python_with_a_vendors_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the interpreter of a new environment in which a vendor's pre-release is installed."""
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)  # the reference environment is not meant
    wheel = tmp_path / f"torch-{VENDOR_VERSION}-py3-none-any.whl"
    info = f"torch-{VENDOR_VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {VENDOR_VERSION}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True)
    return python


def test_pip_install_keeps_the_torch_that_is_there(
    python_with_a_vendors_torch: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    command = [python_with_a_vendors_torch, "-m", "pip", "install", "--quiet", "--dry-run"]
    done = subprocess.run(
        [*command, "--report", report, ROOT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    chosen = {item["metadata"]["name"] for item in json.loads(report.read_text())["install"]}
    assert "llmb" in chosen
    assert "torch" not in chosen
