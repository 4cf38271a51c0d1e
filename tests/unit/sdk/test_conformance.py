"""An inherited test cannot be lost: not by overriding, deleting, hiding or marking it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import llmb
from llmb.sdk.catalogue import CHECKS
from llmb.sdk.conformance import PluginConformance

ENERGY = "test_energy_never_falls_and_rises_with_work"


def subclass(bases: tuple[type, ...] = (PluginConformance,), **body: object) -> type:
    return type(PluginConformance)("TestAcme", bases, {"plugin_name": "acme", **body})


def expected_to_fail(*arguments: object, **named: object) -> Callable[..., None]:
    @pytest.mark.xfail(*arguments, **named)
    def test(self: object) -> None:
        raise AssertionError

    return test


def test_a_class_that_only_names_its_plugin_is_accepted() -> None:
    kit = subclass(device="acme:1", options={"fuse": "none"})
    assert len([name for name in dir(kit) if name.startswith("test")]) == len(CHECKS)


def test_a_class_may_have_tests_of_its_own() -> None:
    assert subclass(test_something_else=lambda self: None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_no_inherited_test_can_be_overridden(check: object) -> None:
    with pytest.raises(TypeError, match="may be neither overridden nor deleted"):
        subclass(**{check.test_name: lambda self: None})  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [None, 3, property(lambda self: None)], ids=["a", "b", "c"])
def test_no_inherited_test_can_be_set_to_something_that_is_no_test(value: object) -> None:
    with pytest.raises(TypeError, match=f"TestAcme.{ENERGY} is not the inherited one"):
        subclass(**{ENERGY: value})


def test_no_inherited_test_can_be_overridden_by_a_class_mixed_in() -> None:
    class Quiet:
        def test_energy_never_falls_and_rises_with_work(self) -> None:
            pass

    with pytest.raises(TypeError, match=ENERGY):
        subclass((Quiet, PluginConformance))
    assert subclass((PluginConformance, Quiet)), "behind the kit it hides nothing"


def test_no_inherited_test_can_be_overridden_further_down() -> None:
    middle = subclass()
    with pytest.raises(TypeError, match=ENERGY):
        type(middle)("TestOther", (middle,), {ENERGY: lambda self: None})


@pytest.mark.parametrize("where", ["kit", "subclass"])
def test_no_inherited_test_can_be_replaced_or_deleted_afterwards(where: str) -> None:
    kit = PluginConformance if where == "kit" else subclass()
    with pytest.raises(TypeError, match=ENERGY):
        setattr(kit, ENERGY, lambda self: None)
    with pytest.raises(TypeError, match=ENERGY):
        delattr(kit, ENERGY)
    assert callable(getattr(kit, ENERGY))


def test_a_deletion_behind_the_guards_back_is_seen_when_a_test_runs() -> None:
    from llmb.sdk import conformance

    test = vars(PluginConformance)[ENERGY]
    kit = subclass()
    type.__delattr__(PluginConformance, ENERGY)
    try:
        with pytest.raises(TypeError, match=ENERGY):
            conformance._report_on(kit)
        with pytest.raises(TypeError, match=ENERGY):
            subclass()
    finally:
        type.__setattr__(PluginConformance, ENERGY, test)


def test_a_known_failure_with_a_reason_is_accepted() -> None:
    assert subclass(**{ENERGY: expected_to_fail(reason="the counter stands still, ticket 123")})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), {}),
        ((), {"reason": ""}),
        ((), {"strict": True}),
        ((False,), {"reason": "never"}),
        ((), {"condition": False, "reason": "never"}),
    ],
    ids=str,
)
def test_an_expected_failure_needs_a_reason_and_no_condition(
    arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError, match=ENERGY):
        subclass(**{ENERGY: expected_to_fail(*arguments, **named)})


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.skip(reason="later"),
        pytest.mark.skipif(True, reason="later"),
        pytest.mark.xfail,
        pytest.mark.xfail(False, reason="later"),
    ],
    ids=lambda mark: mark.name,
)
@pytest.mark.parametrize(
    "hide",
    [
        lambda mark: subclass(pytestmark=mark),
        lambda mark: subclass(pytestmark=[pytest.mark.slow, mark]),
        lambda mark: mark(subclass()),
    ],
    ids=["in the body", "in a list", "above the class"],
)
def test_the_class_as_a_whole_cannot_be_hidden(
    mark: pytest.MarkDecorator, hide: Callable[[pytest.MarkDecorator], type]
) -> None:
    with pytest.raises(TypeError, match="would hide inherited tests"):
        hide(mark)


def test_a_single_inherited_test_cannot_be_hidden_by_a_mark() -> None:
    test = vars(PluginConformance)[ENERGY]
    pytest.mark.skip(reason="later")(test)
    try:
        with pytest.raises(TypeError, match="'skip' would hide"):
            subclass()
    finally:
        del test.pytestmark


def test_a_known_failure_cannot_be_skipped_besides() -> None:
    known = pytest.mark.skip(reason="later")(expected_to_fail(reason="ticket 123"))
    with pytest.raises(TypeError, match="'skip' would hide"):
        subclass(**{ENERGY: known})


def test_other_marks_may_stand_above_the_class() -> None:
    assert pytest.mark.slow(pytest.mark.timeout(600)(subclass())).pytestmark


def test_the_class_cannot_be_kept_from_being_collected() -> None:
    with pytest.raises(TypeError, match="delete every inherited test"):
        subclass(__test__=False)
    with pytest.raises(TypeError, match="__test__"):
        subclass().__test__ = False


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
    "deleted": f"    {ENERGY} = None",
    "overridden": f"    def {ENERGY}(self): pass",
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


@pytest.mark.parametrize("how", ["deleted", "overridden"])
def test_a_lost_test_fails_the_whole_file(said: dict[str, str], how: str) -> None:
    assert f"TypeError: TestAcme.{ENERGY} is not the inherited one" in said[how]
    assert "ended with 2" in said[how]
