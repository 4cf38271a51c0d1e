"""Each difference is a line of its own; what is the same is not mentioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmb.records.finding import RULES_VERSION
from llmb.records.system import Device
from llmb.reproduction import conditions
from llmb.reproduction.conditions import Conditions
from llmb.reproduction.differences import Difference, differences
from tests import builders

THERE = conditions.of_record(builders.make_record(repeats=1))
Change = Callable[[Conditions], Conditions]


def lines(here: Conditions, there: Conditions = THERE) -> list[str]:
    return list(map(str, differences(there, here)))


def system(**changes: Any) -> Change:
    return lambda here: replace(here, system=here.system.model_copy(update=changes))


def plugin(**changes: Any) -> Change:
    assert THERE.plugin is not None
    other = replace(THERE.plugin, **changes)
    return lambda here: replace(here, plugin=other)


def hardware(**changes: Any) -> Change:
    assert THERE.hardware is not None
    other = replace(THERE.hardware, **changes)
    return lambda here: replace(here, hardware=other)


def test_the_same_conditions_differ_in_nothing() -> None:
    assert lines(THERE) == []


def test_a_reference_that_computes_the_same_for_the_family_is_no_difference() -> None:
    older = "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8"
    assert lines(THERE, replace(THERE, reference=older)) == []
    bert = replace(THERE, family="bert")
    assert lines(bert, replace(bert, reference=older)) != []


FILES = dict(THERE.plugin.files) if THERE.plugin else {}
CPU, MEMORY = THERE.system.cpu, THERE.system.memory


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda here: replace(here, reference="0" * 64),
            f"reference: {THERE.reference[:12]} there, 000000000000 here",
        ),
        (
            system(torch="2.12.0"),
            "torch: 2.13.0 there, 2.12.0 here; to come closer: pip install torch==2.13.0",
        ),
        (
            system(python="CPython 3.12.1"),
            "python: 3.11.7 there, CPython 3.12.1 here; to come closer: run llmb with 3.11.7",
        ),
        (system(os="Linux 7"), "system: Linux there, Linux 7 here"),
        (system(drivers={"fast": "1.3"}), "fast: 1.2 there, 1.3 here"),
        (system(drivers={}), "fast: 1.2 there, none here"),
        (
            system(cpu=CPU.model_copy(update={"model": "Other"})),
            "host processor: CPU, 8 usable cores there, Other, 8 usable cores here",
        ),
        (
            system(memory=MEMORY.model_copy(update={"total_bytes": 2**35})),
            "memory: 68.7 GB there, 34.4 GB here",
        ),
        (
            system(devices=(*THERE.system.devices, Device(name="fast:1"))),
            "devices in the machine: 1 there, 2 here",
        ),
        (
            system(env={"OMP_NUM_THREADS": "4"}),
            "variable OMP_NUM_THREADS: 8 there, 4 here; to come closer: set OMP_NUM_THREADS",
        ),
        (
            system(env={"OMP_NUM_THREADS": "8", "TORCH_LOGS": "x"}),
            "variable TORCH_LOGS: not set there, x here; to come closer: unset TORCH_LOGS",
        ),
        (
            hardware(model="Fast [2]"),
            "device: 1 x Fast [1], 34.4 GB there, 1 x Fast [2], 34.4 GB here",
        ),
        (
            plugin(version="1.1"),
            "plugin fast: llmb-fast 1.0 there, llmb-fast 1.1 here; to come closer: "
            "install llmb-fast 1.0 as its vendor says",
        ),
        (
            plugin(files=FILES | {"kernels/fused.py": "0" * 64}),
            "plugin files: 2 there, the same but for 1 (kernels/fused.py) here; to come closer: "
            "compare them with the bundle's folder plugin/",
        ),
        (
            plugin(files={"__init__.py": FILES["__init__.py"]}),
            "plugin files: 2 there, the same but for 1 (kernels/fused.py; 1 missing) here; "
            "to come closer: "
            "compare them with the bundle's folder plugin/",
        ),
        (
            plugin(options={**THERE.plugin.options, "new": 1} if THERE.plugin else {}),
            "plugin option new: none there, 1 here; to come closer: -O new=VALUE, if the plugin "
            "there did as if it had one",
        ),
        (
            plugin(options=None, version="1.1"),
            "plugin fast: llmb-fast 1.0 there, llmb-fast 1.1 here; to come closer: "
            "install llmb-fast 1.0 as its vendor says",
        ),
        (
            lambda here: replace(here, plugin=None),
            "plugin fast: llmb-fast 1.0 there, not installed here; to come closer: "
            "install llmb-fast 1.0 as its vendor says",
        ),
        (
            lambda here: replace(here, hardware=None),
            "device: 1 x Fast [1], 34.4 GB there, not known without the plugin here",
        ),
    ],
)
def test_one_difference_is_one_line(change: Change, line: str) -> None:
    assert lines(change(THERE)) == [line]


def test_another_llmb_is_said_with_its_rules_and_reference_and_what_to_install() -> None:
    there = replace(THERE, llmb="0.0.9", rules="1", reference="0" * 64)
    closer = "to come closer: use llmb 0.0.9"
    here = (THERE.llmb, RULES_VERSION, THERE.reference[:12])
    assert lines(THERE, there) == [
        f"llmb: 0.0.9 there, {here[0]} here; {closer}",
        f"rules: 1 there, {here[1]} here; {closer}",
        f"reference: 000000000000 there, {here[2]} here; {closer}",
    ]


def test_devices_nobody_was_asked_for_are_not_called_missing() -> None:
    assert lines(system(devices=())(THERE)) == []


def test_drivers_nobody_was_asked_for_are_not_called_missing() -> None:
    assert lines(replace(system(drivers={})(THERE), has_drivers=False)) == []


def test_a_variable_that_the_plugin_sets_itself_follows_from_the_plugin() -> None:
    own = plugin(variables=frozenset({"OMP_NUM_THREADS"}))
    assert lines(own(system(env={"OMP_NUM_THREADS": "4"})(THERE))) == []


def test_the_processor_is_named_once_where_it_is_the_device() -> None:
    cpu = replace(hardware(kind="cpu", model="A", cores=4)(THERE))
    other = system(cpu=CPU.model_copy(update={"model": "B"}))(hardware(model="B")(cpu))
    here = replace(other, hardware=replace(cpu.hardware, model="B") if cpu.hardware else None)
    assert [each.subject for each in differences(cpu, here)] == ["device"]


def test_a_plugin_that_no_command_installs_is_to_be_asked_for() -> None:
    assert THERE.plugin is not None
    there = replace(THERE, plugin=replace(THERE.plugin, distribution="x; rm -rf ~"))
    (line,) = differences(there, replace(THERE, plugin=None))
    assert line.closer == "ask who submitted it for 'x; rm -rf ~' '1.0'"


def test_a_difference_without_a_remedy_says_none() -> None:
    assert str(Difference("a", "1", "2")) == "a: 1 there, 2 here"
