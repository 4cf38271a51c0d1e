"""torch.compile in place, for real on the CPU: same names, same loss, one program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from llmb.observe import compilations
from llmb.plugin.kit import compiling
from llmb.reference.models import build
from tests.unit.plugin.kit.test_formats import SHAPE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_keeps_its_names_and_its_loss_and_is_compiled_once() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: torch.compile makes no code for the CPU")
    model = build(SHAPE, 1, torch.float32, "cpu")
    names = [name for name, _ in model.named_parameters()]
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(4))
    eager = model(ids, labels=ids).item()
    before = compilations.torchs_own().get("compilations", 0)
    compiled = compiling.compile_in_place(model, "default")
    assert compiled is model
    assert [name for name, _ in compiled.named_parameters()] == names
    losses = []
    for _ in range(3):
        loss = compiled(ids, labels=ids)
        loss.backward()
        losses.append(loss.item())
    assert losses == pytest.approx([eager] * 3, rel=1e-5)
    assert compilations.torchs_own()["compilations"] - before == 1


@pytest.mark.parametrize(
    ("triton", "compiler", "header", "words"),
    [
        (None, "/usr/bin/cc", True, "triton"),
        (object(), None, True, "C compiler"),
        (object(), "/x/cc", False, "Python.h (install python3-dev)"),
        (object(), "/x/cc", True, None),
    ],
)
def test_what_compiling_lacks_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    triton: object,
    compiler: str | None,
    header: bool,
    words: str | None,
) -> None:
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda kind, scheme: str(tmp_path))
    monkeypatch.setattr(compiling, "find_spec", lambda name: triton)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: compiler)
    missing = compiling.missing_for_compiling()
    assert (missing is None) == (words is None)
    assert words is None or words in str(missing)
