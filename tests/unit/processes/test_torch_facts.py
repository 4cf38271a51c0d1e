"""What the inspector says of a torch that works, works in part, or cannot be imported."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llmb.processes import torch_facts
from llmb.wire.messages import TorchFacts


def inspected() -> TorchFacts:
    said: list[TorchFacts] = []
    torch_facts.tell(SimpleNamespace(send=said.append))
    (facts,) = said
    return facts


def fake(**changes: Any) -> SimpleNamespace:
    """Return a torch made for accelerator warp, with two devices, that works."""
    values = {
        "__version__": "2.99.0+warp",
        "version": SimpleNamespace(warp="5.1", other=None, debug=False, git_version="abc", _x="y"),
        "accelerator": SimpleNamespace(
            current_accelerator=lambda check_available: SimpleNamespace(type="warp"),
            device_count=lambda: 2,
        ),
        "zeros": torch.zeros,
    }
    return SimpleNamespace(**{**values, **changes})


def test_the_installed_torch_is_described_without_trouble() -> None:
    facts = inspected()
    assert (facts.error, facts.version, facts.troubles) == (None, torch.__version__, ())
    assert facts.build["git_version"] == torch.version.git_version
    assert facts.accelerators == torch.accelerator.device_count()


def test_build_and_accelerator_are_named_as_torch_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake())
    facts = inspected()
    assert (facts.version, facts.accelerator, facts.accelerators) == ("2.99.0+warp", "warp", 2)
    assert facts.build == {"warp": "5.1", "debug": "False", "git_version": "abc"}


def test_a_torch_made_for_no_accelerator_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(current_accelerator=lambda check_available: None, device_count=lambda: 0)
    monkeypatch.setitem(sys.modules, "torch", fake(accelerator=bare))
    facts = inspected()
    assert (facts.accelerator, facts.accelerators, facts.troubles) == (None, 0, ())


def test_a_torch_from_before_accelerators_is_in_trouble_and_the_rest_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake(accelerator=None))
    facts = inspected()
    assert (facts.version, facts.accelerators, facts.error) == ("2.99.0+warp", 0, None)
    assert [trouble.partition(":")[0] for trouble in facts.troubles] == [
        "the accelerator of this torch",
        "the devices of this torch",
    ]


def test_a_driver_or_numpy_that_fails_is_a_trouble_and_the_rest_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("driver too old")

    broken = SimpleNamespace(current_accelerator=fake().accelerator.current_accelerator)
    broken.device_count = fail
    monkeypatch.setitem(sys.modules, "torch", fake(accelerator=broken, zeros=fail))
    facts = inspected()
    assert (facts.version, facts.accelerator, facts.accelerators) == ("2.99.0+warp", "warp", 0)
    assert facts.troubles == (
        "the devices of this torch: RuntimeError: driver too old",
        "torch cannot use numpy: RuntimeError: driver too old",
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ImportError("x.so: undefined symbol"), "ImportError: x.so: undefined symbol"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError("half a \udcff"), r"OSError: half a \udcff"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(torch_facts, "import_module", fail)
    facts = inspected()
    assert (facts.error, facts.version) == (told, None)


def test_why_an_extension_failed_is_told_with_that_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("extension: acme.") from OSError("libacme.so: not found")

    monkeypatch.setattr(torch_facts, "import_module", fail)
    assert inspected().error == "RuntimeError: extension: acme. (OSError: libacme.so: not found)"
