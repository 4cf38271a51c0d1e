"""torch.compile in place, for real on the CPU: same names, same loss, one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe import compilations
from llmb.plugin.kit import compiling
from llmb.reference.models import build
from tests import needs
from tests.unit.plugin.kit.test_formats import SHAPE


@pytest.fixture
def scalar() -> Iterator[None]:
    """No vector instructions: which there are the compiler compiles for seconds to see."""
    import torch._inductor.config

    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        yield


class Bigrams(nn.Module):
    """A model for which a C++ compiler has little to do."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(64, 64)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.rows(ids[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())


def llama() -> nn.Module:
    return build(SHAPE, 1, torch.float32, "cpu")


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.usefixtures("scalar")
@pytest.mark.parametrize("made", [Bigrams, pytest.param(llama, marks=pytest.mark.full)])
def test_a_compiled_model_keeps_its_names_and_its_loss_and_is_compiled_once(
    made: Callable[[], nn.Module],
) -> None:
    needs.compiler("torch")
    model = made()
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


@pytest.mark.parametrize("there", ["gcc", "clang", "mine-cc"])
def test_one_compiler_is_enough(
    there: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "mine-cc")
    monkeypatch.setattr(compiling, "find_spec", lambda name: True)
    monkeypatch.setattr(compiling, "_python_header", lambda: tmp_path)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name if name == there else None)
    assert compiling.missing_for_compiling() is None
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    assert compiling.missing_for_compiling() == "a C compiler (install gcc, or set CC)"
