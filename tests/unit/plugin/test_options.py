"""What ``-O key=value`` means for an option of each type, and what is refused."""

from __future__ import annotations

import pytest

from llmb.errors import UsageError
from llmb.plugin.options import PluginOption, resolve

THREADS = PluginOption(name="threads", type="int", default=0, help="how many")
LEVEL = PluginOption(name="level", default="fast", choices=("fast", "safe"), help="how")
WIDTH = PluginOption(name="width", type="int", default=4, choices=(4, 8), help="bits")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "1", True),
        ("bool", "TRUE", True),
        ("bool", "yes", True),
        ("bool", "On", True),
        ("bool", "0", False),
        ("bool", "false", False),
        ("bool", "No", False),
        ("bool", "off", False),
        ("int", "-3", -3),
        ("float", "1e-3", 0.001),
        ("float", "2", 2.0),
        ("str", "a=b", "a=b"),
        ("str", "", ""),
    ],
)
def test_text_becomes_a_value_of_the_options_type(kind: str, text: str, value: object) -> None:
    parsed = PluginOption(name="x", type=kind, default=0, help="").parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("bool", "maybe"), ("bool", ""), ("bool", "2"), ("int", "1.5"), ("int", ""), ("float", "x")],
)
def test_text_of_another_type_is_refused_by_option_value_and_type(kind: str, text: str) -> None:
    option = PluginOption(name="x", type=kind, default=0, help="")
    with pytest.raises(UsageError, match=f"-O x={text}: not a value of type {kind}"):
        option.parse(text)


@pytest.mark.parametrize("text", ["nan", "inf", "1e999"])
def test_a_number_that_is_not_finite_is_refused_as_not_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="-O x="):
        PluginOption(name="x", type="float", default=0, help="").parse(text)


def test_a_value_beside_the_choices_is_refused_with_the_choices() -> None:
    assert LEVEL.parse("safe") == "safe"
    assert WIDTH.parse("8") == 8
    with pytest.raises(UsageError, match="-O level=slow: choose one of fast, safe"):
        LEVEL.parse("slow")
    with pytest.raises(UsageError, match="-O width=5: choose one of 4, 8"):
        WIDTH.parse("5")


def test_a_number_below_the_minimum_is_refused_with_the_minimum() -> None:
    count = PluginOption(name="n", type="int", default=1, minimum=0, help="")
    share = PluginOption(name="share", type="float", default=1.0, minimum=0.5, help="")
    assert count.parse("0") == 0
    assert share.parse("0.5") == 0.5
    with pytest.raises(UsageError, match=r"-O n=-1: it must be at least 0$"):
        count.parse("-1")
    with pytest.raises(UsageError, match=r"-O share=0.4: it must be at least 0\.5$"):
        share.parse("0.4")


def test_what_is_not_given_keeps_its_default_and_every_option_is_resolved() -> None:
    assert resolve("p", [THREADS, LEVEL], {"threads": "2"}) == {"threads": 2, "level": "fast"}
    assert resolve("p", [], {}) == {}


@pytest.mark.parametrize(
    ("offered", "has"), [([THREADS, LEVEL], "it has threads, level"), ([], "it has none")]
)
def test_an_option_the_plugin_lacks_is_refused_with_those_it_has(
    offered: list[PluginOption], has: str
) -> None:
    with pytest.raises(UsageError, match=f"-O speed: plugin 'p' has no such option; {has}"):
        resolve("p", offered, {"speed": "9"})
