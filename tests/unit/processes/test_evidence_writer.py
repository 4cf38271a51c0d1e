"""The evidence folder: every file that is written is announced, and a trial writes none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.observe.canonical import Canonical
from llmb.observe.weights_file import WeightsFile
from llmb.processes.evidence_writer import Announcer, EvidenceWriter, Pristine
from llmb.records import audited, evidence
from llmb.records.audited import StepsEvidence
from llmb.wire.messages import WorkOrder
from tests.unit.builders_audit import Line
from tests.unit.builders_runtime import run_config


def writer(folder: Path, *, wanted: bool = True, scratch: str = "") -> tuple[EvidenceWriter, Line]:
    line = Line()
    order = WorkOrder(
        config=run_config(),
        evidence_folder=str(folder),
        collect_evidence=wanted,
        scratch_folder=scratch,
    )
    return EvidenceWriter(line, order), line


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_file_is_announced_with_the_digest_of_its_bytes(tmp_path: Path) -> None:
    line = Line()
    announcer = Announcer(line, str(tmp_path))
    announcer.write_bytes("a.bin", b"\0\1")
    value = StepsEvidence(steps=(), pause_ns=1, longest_pause_ns=1)
    announcer.write(audited.STEPS, value)
    assert line.announced() == {name: digest(tmp_path / name) for name in ("a.bin", audited.STEPS)}
    assert StepsEvidence.model_validate_json((tmp_path / audited.STEPS).read_bytes()) == value


def test_a_trial_writes_and_announces_nothing(tmp_path: Path) -> None:
    book, line = writer(tmp_path, wanted=False)
    book.write_bytes("a.bin", b"x")
    book.plugin(SimpleNamespace())
    book.program(SimpleNamespace(), [])
    model = nn.Linear(2, 2)
    pristine = Pristine(model, described=False)
    book.post_processed(pristine, model, Canonical(pristine.origin, model, None))
    assert (list(tmp_path.iterdir()), line.sent) == ([], [])
    assert (pristine.tree, pristine.digests) == ({}, ())


def test_whole_weights_go_to_the_scratch_folder_and_are_announced_as_lent(tmp_path: Path) -> None:
    scratch, folder = tmp_path / "scratch", tmp_path / "evidence"
    scratch.mkdir()
    folder.mkdir()
    book, line = writer(folder, scratch=str(scratch))
    model = nn.Linear(3, 2)
    book.weights(
        audited.LIVE_WEIGHTS, Canonical(Pristine(model, described=False).origin, model, None)
    )
    ((name, sha256),) = line.announced(scratch=True).items()
    assert name == audited.LIVE_WEIGHTS
    with WeightsFile(scratch / name, sha256) as file:
        assert torch.equal(file.read("weight"), model.weight)
    assert line.announced() == {}
    assert list(folder.iterdir()) == []


# -- programs of lazy devices ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["HloModule step", ""])
def test_the_program_of_a_lazy_device_is_written_down_and_announced(
    tmp_path: Path, text: str
) -> None:
    book, line = writer(tmp_path)
    book.program(SimpleNamespace(program=lambda tensors: text), [torch.zeros(1)])
    assert (tmp_path / evidence.PROGRAM).read_text() == text
    assert list(line.announced()) == [evidence.PROGRAM]


def test_a_device_without_a_program_leaves_no_file(tmp_path: Path) -> None:
    book, line = writer(tmp_path)
    book.program(SimpleNamespace(program=lambda tensors: None), [])
    assert (list(tmp_path.iterdir()), line.sent) == ([], [])


# -- what post-processing did ---------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3, bias=False)
        self.second = nn.Linear(3, 4, bias=False)


class View:
    """A canonical parameter in a slice of a stored one."""

    def __init__(self, stored: nn.Parameter, begin: int, end: int, *padding: str) -> None:
        self.stored, self.rows, self.padding = stored, slice(begin, end), padding

    def read(self, kind: str) -> Tensor | None:
        return self.stored.detach()[self.rows]

    def write(self, value: Tensor) -> None:
        raise NotImplementedError


Change = Callable[[Tiny], tuple[nn.Module, dict[str, View] | None]]


def weights(tmp_path: Path, change: Change) -> evidence.WeightsEvidence:
    book, _ = writer(tmp_path)
    model = Tiny()
    pristine = Pristine(model, described=True)
    changed, views = change(model)
    book.post_processed(pristine, changed, Canonical(pristine.origin, changed, views))
    seen = evidence.ModelEvidence.model_validate_json((tmp_path / evidence.MODEL).read_bytes())
    assert set(seen.before) == {"(model)", "first", "second"}
    return evidence.WeightsEvidence.model_validate_json((tmp_path / evidence.WEIGHTS).read_bytes())


def facts(found: evidence.WeightsEvidence) -> dict[str, Any]:
    names = ("padding", "missing", "foreign", "frozen", "stored_elements", "canonical_elements")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


WHOLE = {"stored_elements": 24, "canonical_elements": 24}


def test_an_untouched_model_has_its_pristine_parameters_and_nothing_else(tmp_path: Path) -> None:
    found = weights(tmp_path, lambda model: (model, None))
    assert found.processed == found.pristine
    assert [p.name for p in found.pristine] == ["first.weight", "second.weight"]
    assert facts(found) == WHOLE


def test_under_a_wrapper_the_canonical_names_are_kept(tmp_path: Path) -> None:
    found = weights(tmp_path, lambda model: (nn.Sequential(model), None))
    assert found.processed == found.pristine
    assert facts(found) == WHOLE


def test_a_parameter_that_was_dropped_is_missing_and_one_that_came_is_foreign(
    tmp_path: Path,
) -> None:
    def change(model: Tiny) -> tuple[nn.Module, None]:
        del model.second
        model.scale = nn.Parameter(torch.ones(5))
        return model, None

    found = weights(tmp_path, change)
    assert facts(found) == {
        "missing": ("second.weight",),
        "foreign": ("scale",),
        "stored_elements": 17,
        "canonical_elements": 12,
    }


def test_a_frozen_parameter_is_named(tmp_path: Path) -> None:
    def change(model: Tiny) -> tuple[nn.Module, None]:
        model.second.weight.requires_grad_(False)
        return model, None

    found = weights(tmp_path, change)
    assert facts(found) == {**WHOLE, "frozen": ("second.weight",)}
    assert [p.requires_grad for p in found.processed] == [True, False]


def test_a_parameter_that_two_modules_share_is_one_that_is_stored_once(tmp_path: Path) -> None:
    def change(model: Tiny) -> tuple[nn.Module, None]:
        model.second.weight = model.first.weight
        return model, None

    assert facts(weights(tmp_path, change))["missing"] == ("second.weight",)


def fused(rows: int, *padding: str) -> Change:
    def change(model: Tiny) -> tuple[nn.Module, dict[str, View]]:
        both = torch.cat([model.first.weight.detach(), model.second.weight.detach().t()])
        holder = nn.Module()
        holder.both = nn.Parameter(torch.cat([both, torch.zeros(rows - 6, 4)]))
        views = {
            "first.weight": View(holder.both, 0, 3, *padding),
            "second.weight": View(holder.both, 3, 6, *padding),
        }
        views["second.weight"].read = lambda kind: holder.both.detach()[3:6].t()
        return holder, views

    return change


def test_fused_parameters_are_seen_through_the_map_and_elements_counted(tmp_path: Path) -> None:
    found = weights(tmp_path, fused(6))
    assert found.processed == found.pristine
    assert facts(found) == WHOLE


def test_padding_is_declared_and_counted(tmp_path: Path) -> None:
    found = weights(tmp_path, fused(8, "both"))
    assert found.processed == found.pristine
    assert facts(found) == {
        "padding": ("both",),
        "stored_elements": 32,
        "canonical_elements": 24,
    }


def test_padding_that_is_not_trained_is_no_frozen_parameter(tmp_path: Path) -> None:
    change = fused(8, "both")

    def frozen(model: Tiny) -> tuple[nn.Module, dict[str, View] | None]:
        holder, views = change(model)
        holder.both.requires_grad_(False)
        return holder, views

    assert "frozen" not in facts(weights(tmp_path, frozen))


def test_padding_that_was_not_declared_shows_in_the_count(tmp_path: Path) -> None:
    assert facts(weights(tmp_path, fused(8))) == {"stored_elements": 32, "canonical_elements": 24}
