"""What changed, as data and as text."""

from __future__ import annotations

from llmb.records import diff
from llmb.records.evidence import ModelEvidence, ParameterDigest, SettingsEvidence, WeightsEvidence
from llmb.records.run_record import SettingChange


def digest(name: str, shape=(2, 3), dtype: str = "float32", sha256: str = "0") -> ParameterDigest:
    return ParameterDigest(name=name, shape=shape, dtype=dtype, requires_grad=True, sha256=sha256)


def compared(before, after, pristine=(), processed=()):
    return diff.model_diff(
        ModelEvidence(before=before, after=after),
        WeightsEvidence(pristine=pristine, processed=processed),
    )


def test_a_model_left_alone_has_no_diff() -> None:
    tree, parameters = {"a": "Linear()"}, (digest("a.weight"),)
    found = compared(tree, tree, parameters, parameters)
    assert not any(value for value in found.model_dump().values())
    assert diff.unified(tree, tree, "model") == ""


def test_modules_are_told_apart_as_replaced_added_and_removed() -> None:
    found = compared(
        {"keep": "K", "swap": "Linear", "drop": "D"}, {"keep": "K", "swap": "Fused", "new": "N"}
    )
    assert found.modules_replaced == ("swap",)
    assert found.modules_added == ("new",)
    assert found.modules_removed == ("drop",)


def test_a_parameter_is_repacked_when_its_name_shape_or_type_changes_and_not_its_value() -> None:
    pristine = (digest("same"), digest("shape"), digest("type"), digest("gone"))
    processed = (
        digest("same", sha256="1"),
        digest("shape", (3, 2)),
        digest("type", dtype="bfloat16"),
        digest("came"),
    )
    assert compared({}, {}, pristine, processed).parameters_repacked == (
        "came [2, 3] float32",
        "gone [2, 3] float32",
        "shape [2, 3] float32",
        "shape [3, 2] float32",
        "type [2, 3] bfloat16",
        "type [2, 3] float32",
    )


def test_settings_are_listed_by_name_where_their_value_differs() -> None:
    found = diff.setting_changes({"a": "1", "b": "2", "c": "3"}, {"d": "4", "c": "9", "a": "1"})
    assert found == (
        SettingChange(name="b", before="2", after=None),
        SettingChange(name="c", before="3", after="9"),
        SettingChange(name="d", before=None, after="4"),
    )


def test_the_readable_diff_marks_what_went_and_what_came_and_names_both_sides() -> None:
    text = diff.unified({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, "settings")
    lines = text.splitlines()
    assert lines[:2] == ["--- settings before", "+++ settings after"]
    assert [line for line in lines[2:] if line[0] in "+-"] == ["-b: 2", "+b: 3"]


def test_variables_that_were_set_before_the_process_are_changes_of_the_plugin() -> None:
    settings = SettingsEvidence(before={"a": "1", "b": "2"}, after={"a": "1", "b": "2", "c": "3"})
    before, after = diff.settings_sides(settings, {"b": "2"})
    assert (before, after) == ({"a": "1"}, {"a": "1", "b": "2", "c": "3"})


def test_what_a_terminal_may_obey_is_escaped_in_a_readable_diff():
    shown = diff.unified({"a": "x\ty"}, {"a": "x\ty\x1b[31m", "b\u202e": "\r"}, "model")
    assert "+a: x\ty\\x1b[31m\n" in shown
    assert "+b\\u202e: \\r\n" in shown
    assert all(character.isprintable() or character in "\t\n" for character in shown)
