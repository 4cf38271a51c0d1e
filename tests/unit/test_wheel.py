"""The check of wheels and source archives finds missing and strange files."""

from __future__ import annotations

import pytest

from llmb import __version__
from tests import wheel

INFO = f"llmb-{__version__}.dist-info"
GOOD_WHEEL = wheel.package() | {
    f"{INFO}/{name}"
    for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
}
TOP = f"llmb-{__version__}"
FILES = wheel.package() | {"tests/conftest.py", "examples/x.py"}
FILES |= wheel.SOURCE - {"llmb", "tests", "examples"}
GOOD_SOURCE = {f"{TOP}/{name}" for name in FILES}


def test_a_wheel_and_an_archive_of_this_checkout_have_no_fault():
    assert list(wheel.faults_of_wheel(GOOD_WHEEL)) == []
    assert list(wheel.faults_of_source(GOOD_SOURCE)) == []


@pytest.mark.parametrize("name", ["tests/conftest.py", "submissions/x.json", ".gpu", "llmb/x.pyc"])
def test_a_strange_file_in_a_wheel_is_named(name):
    (fault,) = wheel.faults_of_wheel(GOOD_WHEEL | {name})
    assert name in fault


@pytest.mark.parametrize("name", ["llmb/py.typed", "llmb/records/schemas/run-1.json"])
def test_a_missing_file_of_llmb_is_named(name):
    assert list(wheel.faults_of_wheel(GOOD_WHEEL - {name})) == [f"the wheel lacks {name}"]
    lacking = list(wheel.faults_of_source(GOOD_SOURCE - {f"{TOP}/{name}"}))
    assert lacking == [f"the archive lacks {name}"]


@pytest.mark.parametrize("name", [f"{TOP}/submissions/x.json", f"{TOP}/llmb/x.pyc", "elsewhere/x"])
def test_a_strange_file_in_an_archive_is_named(name):
    assert len(list(wheel.faults_of_source(GOOD_SOURCE | {name}))) == 1
