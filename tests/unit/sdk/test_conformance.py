"""A vendor's class inherits a test for every check: it fails, or is skipped, as the check is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llmb
from llmb.sdk.catalogue import CHECKS
from llmb.sdk.conformance import PluginConformance

ENERGY = "test_energy_never_falls_and_rises_with_work"


def test_every_check_is_an_inherited_test_with_its_title() -> None:
    class TestAcme(PluginConformance):
        plugin_name = "acme"

    tests = {name: vars(PluginConformance)[name] for name in dir(TestAcme) if name[:5] == "test_"}
    assert tests.keys() == {check.test_name for check in CHECKS}
    for check in CHECKS:
        assert tests[check.test_name].__doc__.lower() == f"{check.title.lower()}."


# -- in a pytest of its own ------------------------------------------------------------------

#: Nothing is examined: every check but two is said to have passed.
CONFTEST = """
from llmb.sdk import conformance
from llmb.sdk.catalogue import CHECKS
from llmb.sdk.report import Outcome, CheckReport

SAID = {"device.energy": ("fail", "energy fell: [2.0, 1.0] J"),
        "answers.telemetry": ("skip", "the plugin reads none")}
examined = []

def examine(plugin, **named):
    examined.append(plugin)
    assert len(examined) == 1, "once for all tests of a class"
    outcomes = tuple(
        Outcome(id=c.id, title=c.title, status=SAID.get(c.id, ("pass", ""))[0],
                message=SAID.get(c.id, ("pass", ""))[1]) for c in CHECKS)
    return CheckReport(plugin=plugin, distribution="d", version="1", llmb_version="1",
                  torch_version=None, created_utc="", device=None, options={}, seconds=0.0,
                  outcomes=outcomes)

conformance.examine = examine
"""


#: Runs pytest on each folder, one after the other: to begin it takes a second.
EVERY_FOLDER = """
import sys, pytest
for folder in sys.argv[1:]:
    print("==", folder)
    options = ["-rsxf", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib"]
    print("ended with", int(pytest.main([*options, "--rootdir=.", folder])))
"""
FILES = {
    "honest": "",
    "known_failure": f"""
    @pytest.mark.xfail(reason="ticket 123")
    def {ENERGY}(self):
        super().{ENERGY}()
""",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each of the files, and what it ends with."""
    root = tmp_path_factory.mktemp("conformance")
    head = "import pytest\nfrom llmb.sdk.conformance import PluginConformance\n"
    head += 'class TestAcme(PluginConformance):\n    plugin_name = "acme"\n'
    for name, body in FILES.items():
        (root / name).mkdir()
        (root / name / "conftest.py").write_text(CONFTEST)
        (root / name / "test_acme.py").write_text(head + body)
    done = subprocess.run(
        [sys.executable, "-c", EVERY_FOLDER, *FILES],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(llmb.__file__).parent.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    _, *parts = re.split(r"^== .*$", done.stdout, flags=re.MULTILINE)
    return dict(zip(FILES, parts, strict=True))


def test_a_failed_check_is_a_failed_test_and_a_skipped_one_says_why(said: dict[str, str]) -> None:
    assert f"1 failed, {len(CHECKS) - 2} passed, 1 skipped" in said["honest"]
    assert "device.energy: energy fell: [2.0, 1.0] J" in said["honest"]
    assert "the plugin reads none" in said["honest"]
    assert "ended with 1" in said["honest"]


def test_a_known_failure_stays_visible_with_its_reason(said: dict[str, str]) -> None:
    assert f"{len(CHECKS) - 2} passed, 1 skipped, 1 xfailed" in said["known_failure"]
    assert "ticket 123" in said["known_failure"]
    assert "ended with 0" in said["known_failure"]
