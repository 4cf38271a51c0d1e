"""Every check has one function and one test, and neither can be without the other."""

from __future__ import annotations

import ast
import inspect
import keyword
from importlib import import_module
from pathlib import Path

import pytest

import llmb
from llmb.sdk import catalogue
from llmb.sdk.catalogue import CHECKS
from llmb.sdk.conformance import PluginConformance

SUBJECTS = sorted({check.subject for check in CHECKS})
#: Helpers that other checks use.
HELPERS = {"precisions.offered", "runs.tolerance"}


def test_memory_is_looked_for_before_an_allocator_has_kept_any() -> None:
    names = [check.id for check in CHECKS]
    assert names.index("device.available_memory") < names.index("device.peak_memory")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_functions_of_a_subject_are_its_checks(subject: str) -> None:
    module = import_module(f"llmb.sdk.checks.{subject}")
    functions = {
        f"{subject}.{name}"
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    }
    assert functions - HELPERS == {check.id for check in CHECKS if check.subject == subject} - {
        catalogue.AGREE.id
    }


def test_ids_and_names_of_tests_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS) > 40
    assert len({check.test_name for check in CHECKS}) == len(CHECKS)


def test_a_title_is_a_sentence_that_makes_the_name_of_a_test() -> None:
    for check in CHECKS:
        assert check.test_name.isidentifier()
        assert not keyword.iskeyword(check.test_name)
        assert check.title[0].islower()
        assert not check.title.endswith(".")
        assert "'" not in check.title, "an apostrophe leaves a lone letter in the name"


def test_the_kit_has_one_test_for_each_check_and_no_other() -> None:
    tests = {name for name in dir(PluginConformance) if name.startswith("test")}
    assert tests == {check.test_name for check in CHECKS}


def test_the_documentation_knows_how_many_checks_there_are_and_every_subject() -> None:
    page = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert f"the same {len(CHECKS)} checks" in page
    assert all(f"| `{subject}` |" in page for subject in SUBJECTS)


def test_a_check_is_found_by_its_id() -> None:
    assert catalogue.find("device.energy").subject == "device"


def test_pytest_is_imported_by_the_kit_alone() -> None:
    root = Path(llmb.__file__).parent
    importing = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name == "pytest" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "pytest")
    }
    assert importing == {"sdk/conformance.py"}
