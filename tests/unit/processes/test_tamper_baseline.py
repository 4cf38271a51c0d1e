"""What a worker's process was like before the plugin is compared with what it is at the end."""

from __future__ import annotations

from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from llmb.observe import namespace, surroundings, types
from llmb.processes import tamper_baseline
from llmb.processes.tamper_baseline import TamperBaseline
from llmb.records import evidence
from llmb.records.evidence import NamespaceEvidence, Replacement, SurroundingsEvidence

NAMES = NamespaceEvidence(
    callables=7,
    operators=8,
    replaced=(Replacement(name="torch.mm", kind="callable", origin="plugin"),),
    device_kernels=0,
    libraries=(),
)
AROUND = SurroundingsEvidence(
    found=(),
    preloaded=(),
    frozen_objects=(0, 0),
    collecting=(True, True),
    native_threads=None,
)

#: The code that asks a plugin for readings.
INVITED: tuple[CodeType, ...] = ((lambda: None).__code__,)


class Order(list[str]):
    """What was done, in order."""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    done = Order()

    class Watch:
        def __init__(self, *, anew: bool) -> None:
            done.append("names before" + " anew" * anew)

        def close(self) -> None:
            done.append("names after")

        def stands(self, name: str, value: object, code: object) -> bool:
            return False

        def evidence(self, module: str, distribution: str) -> NamespaceEvidence:
            assert (module, distribution) == ("acme", "llmb-acme")
            return NAMES

    class Around:
        def __init__(self, invited: tuple[CodeType, ...]) -> None:
            assert invited == INVITED
            done.append("surroundings before")

        def look(self, steps: int, stamp_ns: int) -> None:
            done.append(f"who is there after {steps} steps")

        def evidence(self, *whose: Any) -> SurroundingsEvidence:
            assert whose == ("acme", "llmb-acme", ("libacme",))
            return AROUND

    monkeypatch.setattr(namespace, "unreachable_watch", Watch)
    monkeypatch.setattr(surroundings, "ProcessCensus", Around)
    monkeypatch.setattr(types, "TypeCensus", lambda: done.append("types") or "census")
    return done


class EvidenceWriter:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}

    def write(self, name: str, value: Any) -> None:
        self.written[name] = value


PLUGIN: Any = SimpleNamespace(
    module_name="acme", distribution="llmb-acme", native_libraries=lambda: ("libacme",)
)


class Harness:
    """An object of the harness, which could be given another class."""


class Disguise(Harness):
    """That other class."""


def test_everything_is_looked_at_before_the_plugin_and_types_in_a_full_audit_only(
    order: Order,
) -> None:
    assert TamperBaseline(census=False, invited=INVITED).types is None
    assert order == ["names before", "surroundings before"]
    assert TamperBaseline(census=True, invited=INVITED).types == "census"


def test_what_was_changed_on_purpose_is_looked_at_anew(order: Order) -> None:
    TamperBaseline(census=False, anew=True, invited=INVITED)
    assert order[0] == "names before anew"


def test_names_are_compared_at_the_end_of_the_stream_and_not_when_they_are_written(
    order: Order,
) -> None:
    tamper = TamperBaseline(census=False, invited=INVITED)
    tamper.close({Harness: Harness()}, 9)
    assert order[-1] == "names after"
    writer: Any = EvidenceWriter()
    tamper.write(writer, PLUGIN)
    assert order[-1] == "names after"
    assert writer.written == {evidence.NAMESPACE: NAMES, evidence.SURROUNDINGS: AROUND}


@pytest.mark.parametrize("moment", ["before the end", "before it is written", "for a while"])
def test_an_object_of_the_harness_in_another_class_is_a_replacement_whenever_it_was_one(
    order: Order, moment: str
) -> None:
    tamper, own = TamperBaseline(census=False, invited=INVITED), Harness()
    if moment != "before it is written":
        own.__class__ = Disguise
    tamper.close({Harness: own}, 9)
    own.__class__ = Harness if moment == "for a while" else Disguise
    writer: Any = EvidenceWriter()
    tamper.write(writer, PLUGIN)
    first, second = writer.written[evidence.NAMESPACE].replaced
    assert first.name == "torch.mm", "what else was replaced stays"
    assert (second.name, second.kind) == ("llmb.Harness", "foreign")


def test_nothing_can_be_replaced_on_a_guard_alone(order: Order) -> None:
    tamper = TamperBaseline(census=False, invited=INVITED)
    with pytest.raises(AttributeError):
        tamper.write = lambda *_: None
    assert tamper_baseline.TamperBaseline.__slots__


class Blind:
    """Stands in for a serializer of pydantic, and empties what it is given."""

    def to_python(self, *_: object, **__: object) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("kind", [evidence.NamespaceEvidence, evidence.SurroundingsEvidence])
def test_a_serializer_that_would_empty_the_findings_is_put_back_and_named(
    order: Order, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    right, name = kind.__pydantic_serializer__, "__pydantic_serializer__"
    monkeypatch.setattr(kind, name, right)  # whatever happens, it is put back afterwards
    tamper = TamperBaseline(census=False, invited=INVITED)
    tamper.close({Harness: Harness()}, 9)
    type.__setattr__(kind, name, Blind())
    writer: Any = EvidenceWriter()
    tamper.write(writer, PLUGIN)
    assert kind.__pydantic_serializer__ is right
    found = writer.written[evidence.NAMESPACE].replaced
    assert f"llmb.{kind.__name__}.{name}" in {one.name for one in found}
