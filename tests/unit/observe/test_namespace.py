"""What honest work does to torch is not written down as a replacement; everything else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import llmb
from llmb.audit import namespace as rule_n1
from llmb.observe import callables, namespace
from llmb.observe.namespace import Watch, unreachable_watch
from llmb.records.evidence import LibraryBaseline, NamespaceEvidence
from llmb.records.finding import Finding, Status
from tests.unit.builders_runtime import install

PLUGIN = ("llmb.plugin.builtin.cpu", "llmb")


def other(*arguments: object, **named: object) -> None:
    return None


def replaced(watch: Watch) -> list[str]:
    return [r.name for r in watch.evidence(*PLUGIN).replaced]


def test_nothing_is_replaced_where_nothing_was_done() -> None:
    evidence = Watch().evidence(*PLUGIN)
    assert evidence.replaced == ()
    assert evidence.callables > 50_000
    assert evidence.libraries == ()


def test_who_replaces_the_watching_functions_blinds_no_unreachable_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = unreachable_watch()
    monkeypatch.setattr(callables.Callables, "replaced", lambda *_: ())
    monkeypatch.setattr(namespace, "_replaced", lambda *_: iter(()))
    monkeypatch.setattr(Watch.evidence, "__code__", (lambda self, module, name: None).__code__)
    assert replaced(watch) == [
        "llmb.observe.callables.Callables.replaced",
        "llmb.observe.namespace.Watch.evidence",
        "llmb.observe.namespace._replaced",
    ]


def test_the_modules_in_use_stay_the_shared_ones() -> None:
    unreachable_watch()
    assert sys.modules["llmb.observe.callables"] is callables


def test_what_is_put_back_after_the_closing_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(F, "silu", other)
    watch.close()
    monkeypatch.undo()
    assert replaced(watch) == ["torch.nn.functional.silu"]


def test_whose_code_stands_there_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(F, "silu", other)
    (found,) = watch.evidence(*PLUGIN).replaced
    assert found.kind == "callable"
    assert found.place is not None
    assert found.place.endswith("test_namespace.other")
    assert found.sha256 is not None


def test_code_changed_in_place_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(F.silu, "__code__", other.__code__)
    (found,) = watch.evidence(*PLUGIN).replaced
    assert found.place == "torch.nn.functional.silu, changed in place"


def test_other_code_has_another_digest_within_the_same_wrapper() -> None:
    def wrapped(function: object) -> object:
        return torch._dynamo.disable(function)

    assert namespace._digest(wrapped(other)) == namespace._digest(wrapped(other))
    assert namespace._digest(wrapped(other)) != namespace._digest(wrapped(F.silu))
    assert namespace._digest(len) is None


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_put_over_torchs_is_written_down() -> None:
    watch = Watch()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm", lambda a, b: a, "CPU")
        (found,) = watch.evidence(*PLUGIN).replaced
    assert (found.kind, found.name, found.dispatch_key) == ("kernel", "torch.ops.aten.mm", "CPU")


def test_kernels_for_a_device_are_only_counted() -> None:
    watch = Watch()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm", lambda a, b: a, "PrivateUse1")
        evidence = watch.evidence(*PLUGIN)
    assert (evidence.replaced, evidence.device_kernels) == ((), 1)


# -- in processes of their own --------------------------------------------------------------

HONEST = """
import sys, torch
from contextlib import suppress
from torch import nn
from torch.utils.checkpoint import checkpoint
from llmb.observe.namespace import Watch

watch = Watch()
model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
torch.optim.AdamW(nn.Linear(2, 2).parameters(), fused=True)  # a second one

def step(forward):
    forward(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

step(model)
model[0].register_forward_hook(lambda module, inputs, output: output * 1)
model[0].register_full_backward_hook(lambda module, grads, _: None)
step(lambda x: checkpoint(model, x, use_reentrant=False))
with torch.autocast("cpu", torch.bfloat16):
    step(model)
torch.func.vmap(torch.func.grad(lambda x: x.square().sum()))(torch.ones(3, 4))
torch.func.functional_call(model, dict(model.named_parameters()), (torch.ones(1, 8),))

@torch.library.custom_op("acme::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

twice(torch.ones(2))
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
step(lambda x: Twice.apply(model(x)))
if sys.argv[1:]:
    step(torch.compile(model, dynamic=False))
    torch.compile(optimizer.step)()
    model.compile(mode="max-autotune-no-cudagraphs")
    step(model)
print(watch.evidence("llmb.plugin.builtin.cpu", "llmb").model_dump_json())
"""


def in_python(script: str, *arguments: str, folder: Path | None = None) -> str:
    root = Path(llmb.__file__).resolve().parent.parent
    path = f"import sys; sys.path[:0] = {[str(p) for p in (folder, root) if p]}\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", path + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
def test_honest_uses_of_torch_replace_nothing(compiled: bool) -> None:
    said = in_python(HONEST, *(["compiled"] if compiled else []))
    assert NamespaceEvidence.model_validate_json(said).replaced == ()


LIBRARY = """
import torch
import torch.nn.functional as F

def silu(input, inplace=False):
    return input * torch.sigmoid(input)

F.silu = silu
torch.acme = silu
kernels = torch.library.Library("aten", "IMPL")
kernels.impl("relu", lambda x: x.clamp(min=0), "CPU")

def patch_more():
    F.gelu = silu
"""
WORKER = """
from llmb.observe.namespace import Watch
watch = Watch()
import llmb_acme
print(watch.evidence("llmb_acme", "llmb-acme").model_dump_json())
"""
BASELINE = """
import json, sys
from llmb.observe.namespace import library_baseline
modules = json.loads(sys.argv[1])
baseline = library_baseline(modules, "llmb_acme", "llmb-acme")
assert "llmb_acme" not in sys.modules
print(baseline.model_dump_json())
"""


PLUGIN_MODULE = """
import sys
import acme_library
import torch
import torch.nn.functional as F

def own(*arguments, **named):
    return arguments[0]

acme_library.patch_more()
F.elu = own
sys.modules["torch.optim.adam"].adam = acme_library.silu
import torch._inductor.codegen.cpp as late
late.CppOverrides.exp = own
late.CppOverrides.log = acme_library.silu
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin that changes torch, and needs a library that does so by being imported."""
    site = tmp_path_factory.mktemp("site")
    info = install(site, "llmb-acme", {"acme": "llmb_acme"}, {"llmb_acme.py": PLUGIN_MODULE})
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-library\n")
    library = install(site, "acme-library", {}, {"acme_library.py": LIBRARY}, version="2.5")
    (library / "top_level.txt").write_text("acme_library\n")
    (library / "RECORD").write_text("acme_library.py,,\n")
    return site


@pytest.fixture(scope="module")
def evidence(acme: Path) -> NamespaceEvidence:
    return NamespaceEvidence.model_validate_json(in_python(WORKER, folder=acme))


@pytest.fixture(scope="module")
def baseline(acme: Path, evidence: NamespaceEvidence) -> LibraryBaseline:
    modules = [name for library in evidence.libraries for name in library.modules]
    said = in_python(BASELINE, json.dumps([*modules, "acme_absent"]), folder=acme)
    return LibraryBaseline.model_validate_json(said)


def judged(evidence: NamespaceEvidence, baseline: LibraryBaseline, *names: str) -> Finding:
    """Return N1 of a run in which no more than ``names`` was replaced."""
    chosen = tuple(r for r in evidence.replaced if r.name in names)
    assert {r.name for r in chosen} == {*names}
    evidence = evidence.model_copy(update={"replaced": chosen})
    return rule_n1.judge(evidence, baseline, (), "namespace.json")


def test_the_library_is_named_with_version_and_digest(evidence: NamespaceEvidence) -> None:
    (library,) = evidence.libraries
    assert (library.distribution, library.version) == ("acme-library", "2.5")
    assert library.modules == ("acme_library",)
    assert library.sha256 is not None
    (silu,) = [r for r in evidence.replaced if r.name == "torch.nn.functional.silu"]
    assert (silu.origin, silu.distribution) == ("library", "acme-library")
    assert silu.place == "acme_library.silu"


def test_what_importing_the_library_replaces_is_confirmed_without_the_plugin(
    evidence: NamespaceEvidence, baseline: LibraryBaseline
) -> None:
    names = ("torch.nn.functional.silu", "torch.ops.aten.relu")
    finding = judged(evidence, baseline, *names)
    assert finding.status is Status.PASS
    assert finding.message.startswith("acme-library (2.5, sha256 ")
    assert all(name in finding.message for name in names)


@pytest.mark.parametrize(
    "name",
    ["torch.nn.functional.gelu", "torch.nn.functional.elu", "torch.optim.adam.adam"],
    ids=["by a call to the library", "by code of the plugin", "in the optimizer"],
)
def test_what_importing_the_library_does_not_explain_fails(
    evidence: NamespaceEvidence, baseline: LibraryBaseline, name: str
) -> None:
    finding = judged(evidence, baseline, name)
    assert finding.status is Status.FAIL
    assert name in finding.message


def test_what_the_library_adds_to_torch_is_no_replacement(evidence: NamespaceEvidence) -> None:
    assert "torch.acme" not in {r.name for r in evidence.replaced}


def test_a_library_that_cannot_be_imported_alone_is_said_so(baseline: LibraryBaseline) -> None:
    assert baseline.imported == ("acme_library",)
    assert baseline.failed == {"acme_absent": "ModuleNotFoundError: No module named 'acme_absent'"}


def test_the_plugins_code_in_a_module_of_torch_that_came_later_fails(
    evidence: NamespaceEvidence, baseline: LibraryBaseline
) -> None:
    name = "torch._inductor.codegen.cpp.CppOverrides.exp"
    (found,) = [r for r in evidence.replaced if r.name == name]
    assert (found.kind, found.origin, found.distribution) == ("foreign", "plugin", "llmb-acme")
    assert judged(evidence, baseline, name).status is Status.FAIL


def test_the_librarys_code_in_a_module_of_torch_that_came_later_is_noted(
    evidence: NamespaceEvidence, baseline: LibraryBaseline
) -> None:
    name = "torch._inductor.codegen.cpp.CppOverrides.log"
    finding = judged(evidence, baseline, name)
    assert finding.status is Status.PASS
    assert name in finding.message


EARLY = """
import sys, types
import torch
import torch.nn.functional as F

def silu(x, inplace=False):
    return x

F.silu = silu
sys.modules["torch.acme"] = torch.acme = types.ModuleType("torch.acme")
torch.acme.fast = silu  # no replacement, but a vendor's own module
"""


def test_code_that_was_in_torch_before_the_watch_began_is_seen(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    script = (
        "import early\nfrom llmb.observe.namespace import Watch\n"
        "print(Watch().evidence('llmb.plugin.builtin.cpu', 'llmb').model_dump_json())"
    )
    said = in_python(script, folder=tmp_path)
    (found,) = NamespaceEvidence.model_validate_json(said).replaced
    assert (found.name, found.kind) == ("torch.nn.functional.silu", "foreign")
