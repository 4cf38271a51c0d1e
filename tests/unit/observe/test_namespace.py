"""What honest work does to torch is not written down as a replacement; everything else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import llmb
from llmb.audit import namespace as rule_n1
from llmb.observe import callables, namespace
from llmb.observe.namespace import Watch, unreachable_watch
from llmb.records.evidence import LibraryBaseline, NamespaceEvidence, Replacement
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


class Held:
    def write(self) -> None: ...


def test_a_method_put_on_an_object_of_the_worker_is_a_replacement() -> None:
    watch, optimizer = Watch(), torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    watch.close({"optimizer": optimizer})
    assert replaced(watch) == []
    watch, optimizer.step = Watch(), other  # type: ignore[method-assign]
    watch.close({"optimizer": optimizer})
    assert replaced(watch) == ["llmb.worker.optimizer.step"]


def test_an_object_of_the_worker_of_a_foreign_class_is_a_replacement() -> None:
    watch = Watch()
    watch.close({"notebook": Held()})
    assert replaced(watch) == ["llmb.worker.notebook.__class__"]


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
import json, sys
from llmb.observe.namespace import Watch
watch = Watch()
import llmb_acme
exec(sys.argv[1])
evidence = watch.evidence("llmb_acme", "llmb-acme")
from llmb.observe.namespace import library_baseline
print(evidence.model_dump_json())
"""
BASELINE = """
import json, sys
from llmb.observe.namespace import library_baseline
modules = json.loads(sys.argv[1])
baseline = library_baseline(modules, "llmb_acme", "llmb-acme")
assert "llmb_acme" not in sys.modules
print(baseline.model_dump_json())
"""


@pytest.fixture
def acme(site: Path) -> Path:
    """A plugin that needs a library which, by being imported, changes torch."""
    info = install(
        site, "llmb-acme", {"acme": "llmb_acme"}, {"llmb_acme.py": "import acme_library\n"}
    )
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-library\n")
    library = install(site, "acme-library", {}, {"acme_library.py": LIBRARY}, version="2.5")
    (library / "top_level.txt").write_text("acme_library\n")
    (library / "RECORD").write_text("acme_library.py,,\n")
    return site


def watched(site: Path, act: str = "") -> NamespaceEvidence:
    return NamespaceEvidence.model_validate_json(in_python(WORKER, act, folder=site))


def judged(site: Path, act: str = "") -> Finding:
    """Return N1 of a run whose plugin imports the library and does ``act``."""
    evidence = watched(site, act)
    modules = [name for library in evidence.libraries for name in library.modules]
    said = in_python(BASELINE, json.dumps(modules), folder=site)
    return rule_n1.judge(evidence, LibraryBaseline.model_validate_json(said), (), "namespace.json")


def test_the_library_is_named_with_version_and_digest(acme: Path) -> None:
    evidence = watched(acme)
    (library,) = evidence.libraries
    assert (library.distribution, library.version) == ("acme-library", "2.5")
    assert library.modules == ("acme_library",)
    assert library.sha256 is not None
    (silu,) = [r for r in evidence.replaced if r.name == "torch.nn.functional.silu"]
    assert (silu.origin, silu.distribution) == ("library", "acme-library")
    assert silu.place == "acme_library.silu"


def test_what_importing_the_library_replaces_is_confirmed_without_the_plugin(acme: Path) -> None:
    finding = judged(acme)
    assert finding.status is Status.PASS
    assert finding.message.startswith("acme-library (2.5, sha256 ")
    assert "torch.nn.functional.silu" in finding.message
    assert "torch.ops.aten.relu" in finding.message


@pytest.mark.parametrize(
    ("act", "name"),
    [
        ("import acme_library; acme_library.patch_more()", "torch.nn.functional.gelu"),
        ("import torch; torch.nn.functional.silu = lambda x: x", "torch.nn.functional.silu"),
        ("import torch; torch.optim.adam.adam = lambda *a, **k: None", "torch.optim.adam.adam"),
    ],
    ids=["by a call to the library", "by other code than the library's", "in torch.optim"],
)
def test_what_importing_the_library_does_not_explain_fails(acme: Path, act: str, name: str) -> None:
    finding = judged(acme, act)
    assert finding.status is Status.FAIL
    assert name in finding.message


def test_what_the_library_does_to_the_optimizer_fails_though_it_is_confirmed(acme: Path) -> None:
    (acme / "acme_library.py").write_text(
        "import torch.optim.adam as adam\ndef own(*a, **k): ...\nadam.adam = own\n"
    )
    finding = judged(acme)
    assert finding.status is Status.FAIL
    assert "torch.optim.adam.adam" in finding.message


def test_a_library_that_cannot_be_imported_alone_confirms_nothing(acme: Path) -> None:
    (acme / "acme_library.py").write_text("raise SystemExit('no device')\n")
    said = in_python(BASELINE, '["acme_library"]', folder=acme)
    baseline = LibraryBaseline.model_validate_json(said)
    assert baseline.imported == baseline.replaced == ()
    assert baseline.failed == {"acme_library": "SystemExit: no device"}


FOREIGN = "import torch.{module} as late; late.{name} = llmb_acme.{name} = acme_library.{whose}"


def found_foreign(site: Path, act: str) -> list[Replacement]:
    return [r for r in watched(site, act).replaced if r.kind == "foreign"]


def test_code_of_the_plugin_in_a_module_of_torch_that_came_later_is_seen(acme: Path) -> None:
    (acme / "llmb_acme.py").write_text("import acme_library\ndef exp(x): return x\n")
    act = "import torch._inductor.codegen.cpp as c; c.CppOverrides.exp = llmb_acme.exp"
    (found,) = found_foreign(acme, act)
    assert found.name == "torch._inductor.codegen.cpp.CppOverrides.exp"
    assert (found.origin, found.distribution) == ("plugin", "llmb-acme")


def test_code_that_was_in_torch_before_the_plugin_was_loaded_is_seen(acme: Path) -> None:
    (acme / "early.py").write_text(
        "import torch.nn.functional as F\ndef silu(x, inplace=False): return x\nF.silu = silu\n"
    )
    script = f"import early\n{WORKER}"
    evidence = NamespaceEvidence.model_validate_json(in_python(script, "", folder=acme))
    kinds = {r.name: r.kind for r in evidence.replaced}
    assert kinds["torch.nn.functional.silu"] in ("callable", "foreign")
