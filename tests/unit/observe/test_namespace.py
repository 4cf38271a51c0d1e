"""What honest work does to torch is not written down as a replacement; everything else is."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import llmb
from llmb.audit import namespace as rule_n1
from llmb.observe import callables, executed_code, namespace
from llmb.observe.namespace import NamespaceWatch, unreachable_watch
from llmb.records.evidence import LibraryBaseline, NamespaceEvidence, Replacement
from llmb.records.finding import Finding, Status
from tests import needs, patience
from tests.unit.builders_runtime import install

PLUGIN = ("llmb.plugin.builtin.cpu", "llmb")


def other(*arguments: object, **named: object) -> None:
    return None


@pytest.fixture(scope="module")
def watch() -> NamespaceWatch:
    return unreachable_watch()


@pytest.fixture(scope="module")
def unchanged(watch: NamespaceWatch) -> NamespaceEvidence:
    watch.close()
    return watch.evidence(*PLUGIN)


@pytest.fixture(scope="module")
def changed(watch: NamespaceWatch) -> NamespaceEvidence:
    """What is written down after all of this at once: to look takes half a second each time."""
    scoped = torch.library._scoped_library("aten", "IMPL")
    with warnings.catch_warnings(), scoped as library, pytest.MonkeyPatch.context() as patch:
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        # Parts of the very functions that watch.
        patch.setattr(callables.Callables, "replaced", lambda *_: ())
        patch.setattr(namespace, "_replaced", lambda *_: iter(()))
        patch.setattr(
            NamespaceWatch.evidence, "__code__", (lambda self, module, name: None).__code__
        )
        patch.setattr(F, "silu", other)
        patch.setattr(F.gumbel_softmax, "__code__", other.__code__)
        library.impl("mm", lambda a, b: a, "CPU")
        library.impl("mm", lambda a, b: a, "PrivateUse1")
        with pytest.MonkeyPatch.context() as passing:
            passing.setattr(F, "elu", other)
            watch.close()
        return watch.evidence(*PLUGIN)


def found(evidence: NamespaceEvidence, name: str) -> Replacement:
    (one,) = [r for r in evidence.replaced if r.name == name]
    return one


def test_nothing_is_replaced_where_nothing_was_done(unchanged: NamespaceEvidence) -> None:
    assert unchanged.replaced == ()
    assert unchanged.callables > 50_000
    assert unchanged.libraries == ()


def test_everything_that_was_replaced_is_named_and_nothing_else(changed: NamespaceEvidence) -> None:
    assert [r.name for r in changed.replaced] == [
        "llmb.observe.callables.Callables.replaced",
        "llmb.observe.namespace.NamespaceWatch.evidence",
        "llmb.observe.namespace._replaced",
        "torch.nn.functional.elu",
        "torch.nn.functional.gumbel_softmax",
        "torch.nn.functional.silu",
        "torch.ops.aten.mm",
    ]


def test_other_code_of_llmb_than_its_file_fails(
    watch: NamespaceWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Path(llmb.__file__).parent / "observe" / "gradient_ledger.py"
    monkeypatch.setattr(executed_code, "other_than_own", lambda folder: iter([ledger]))
    seen = watch.evidence(*PLUGIN)
    name = "llmb.observe.gradient_ledger"
    found = [one for one in seen.replaced if one.name == name]
    assert len(found) == 1
    seen = seen.model_copy(update={"replaced": tuple(found)})
    judged = rule_n1.finding(seen, None, (), "namespace.json")
    assert judged.status is Status.FAIL
    assert "gradient_ledger by other code than the file" in judged.message


def test_who_replaces_the_watching_functions_blinds_no_unreachable_watch(
    changed: NamespaceEvidence,
) -> None:
    assert found(changed, "llmb.observe.callables.Callables.replaced")
    assert found(changed, "llmb.observe.namespace.NamespaceWatch.evidence")
    assert found(changed, "llmb.observe.namespace._replaced")


def test_the_modules_in_use_stay_the_shared_ones(watch: NamespaceWatch) -> None:
    assert sys.modules["llmb.observe.callables"] is callables
    assert type(watch) is not NamespaceWatch


def test_what_is_put_back_after_the_closing_was_replaced(changed: NamespaceEvidence) -> None:
    assert found(changed, "torch.nn.functional.elu")


def test_whose_code_stands_there_is_written_down(changed: NamespaceEvidence) -> None:
    silu = found(changed, "torch.nn.functional.silu")
    assert silu.kind == "callable"
    assert silu.place is not None
    assert silu.place.endswith("test_namespace.other")
    assert silu.sha256 is not None


def test_code_changed_in_place_is_said_to_be(changed: NamespaceEvidence) -> None:
    name = "torch.nn.functional.gumbel_softmax"
    assert found(changed, name).place == f"{name}, changed in place"


def test_a_kernel_put_over_torchs_is_written_down(changed: NamespaceEvidence) -> None:
    mm = found(changed, "torch.ops.aten.mm")
    assert (mm.kind, mm.dispatch_key) == ("kernel", "CPU")


def test_kernels_for_a_device_are_only_counted(
    unchanged: NamespaceEvidence, changed: NamespaceEvidence
) -> None:
    assert (unchanged.device_kernels, changed.device_kernels) == (0, 1)


def test_other_code_has_another_digest_within_the_same_wrapper() -> None:
    def wrapped(function: object) -> object:
        return torch._dynamo.disable(function)

    assert namespace._digest(wrapped(other)) == namespace._digest(wrapped(other))
    assert namespace._digest(wrapped(other)) != namespace._digest(wrapped(F.silu))
    assert namespace._digest(len) is None


# -- in a process that was forked from one that has looked ----------------------------------


@pytest.fixture(scope="module")
def forked() -> Iterator[tuple[NamespaceWatch, NamespaceEvidence]]:
    """What a watch that looked before its process was forked sees of two changes since."""
    running = ModuleType("__main__")
    running.__spec__ = ModuleSpec("llmb.processes.worker", None)
    running.fence = running.pause = other  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "llmb.processes.worker", ModuleType("llmb.processes.worker"))
        namespace.prepare()
        patch.delitem(sys.modules, "llmb.processes.worker")
        patch.setitem(sys.modules, "__main__", running)
        watch = unreachable_watch()
        patch.setattr(running, "fence", found)
        patch.setattr(F, "elu", other)
        watch.close()
        yield watch, watch.evidence(*PLUGIN)


def test_what_is_replaced_after_the_fork_is_named_and_the_module_that_is_run_is_not(
    forked: tuple[NamespaceWatch, NamespaceEvidence],
) -> None:
    names = [r.name for r in forked[1].replaced]
    assert names == ["llmb.processes.worker.fence", "torch.nn.functional.elu"]


def test_a_watch_that_has_looked_is_unreachable_too(
    forked: tuple[NamespaceWatch, NamespaceEvidence],
) -> None:
    assert type(forked[0]) is not NamespaceWatch
    assert namespace._ready == []


def test_what_was_changed_on_purpose_since_the_fork_is_no_replacement() -> None:
    namespace.prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "elu", F.relu)
        watch = unreachable_watch(anew=True)
        assert watch.evidence(*PLUGIN).replaced == ()
    assert namespace._ready == []


# -- in processes of their own --------------------------------------------------------------

HONEST = """
import sys, torch
from contextlib import suppress
from torch import nn
from torch.utils.checkpoint import checkpoint
from llmb.observe.namespace import NamespaceWatch

class Model(nn.Module):  # one of torch's own would not be compiled in place
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.outer(nn.functional.silu(self.inner(x)))

watch = NamespaceWatch()
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
torch.optim.AdamW(nn.Linear(2, 2).parameters(), fused=True)  # a second one

def step(forward):
    forward(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

step(model)
hooks = [
    model.inner.register_forward_hook(lambda module, inputs, output: output * 1),
    model.inner.register_full_backward_hook(lambda module, grads, _: None),
]
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
graphs = torch._dynamo.utils.counters["stats"]

def compiling(work):
    before = graphs["unique_graphs"]
    work()
    assert graphs["unique_graphs"] > before

compiled = torch.compile(model, dynamic=False, backend="eager")
compiling(lambda: step(compiled))  # in parts, before and after what the hook does
for hook in hooks:
    hook.remove()
model(torch.ones(2, 8)).sum().backward()
compiling(torch.compile(optimizer.step, backend="eager"))
if sys.argv[1:]:
    model.compile(mode="max-autotune-no-cudagraphs")
    compiling(lambda: step(model))
print(watch.evidence("llmb.plugin.builtin.cpu", "llmb").model_dump_json())
"""


def in_python(script: str, *arguments: str, folder: Path | None = None) -> list[str]:
    """Return the lines that ``script`` prints."""
    root = Path(llmb.__file__).resolve().parent.parent
    path = f"import sys; sys.path[:0] = {[str(p) for p in (folder, root) if p]}\n"
    done = patience.run(
        [sys.executable, "-W", "ignore", "-c", path + script, *arguments],
        # Which vector instructions there are the compiler finds out by compiling for seconds.
        env={**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.full
def test_honest_uses_of_torch_replace_nothing_compiled_or_not() -> None:
    said = in_python(HONEST, *(["inductor"] if needs.has_compiler("torch") else []))
    assert NamespaceEvidence.model_validate_json(said[-1]).replaced == ()


EARLY = """
import sys, types
import torch
import torch.nn.functional as F

def hardswish(x, inplace=False):
    return x

F.hardswish = hardswish
sys.modules["torch.early"] = torch.early = types.ModuleType("torch.early")
torch.early.fast = hardswish  # no replacement, but a vendor's own module
"""
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
assert "torch._inductor.codegen.common" not in sys.modules
import torch._inductor.codegen.common as late
late.OpDecompositions.sigmoid = own
late.OpDecompositions.relu = acme_library.silu
"""
#: A worker, and the process that has not loaded the plugin, of one that has loaded torch.
BOTH = """
import os, sys
from llmb.observe.namespace import NamespaceWatch, library_baseline, settle

settle()
if os.fork() == 0:
    import early
    watch = NamespaceWatch()
    import llmb_acme
    print(watch.evidence("llmb_acme", "llmb-acme").model_dump_json(), flush=True)
    os._exit(0)
assert os.wait()[1] == 0
baseline = library_baseline(["acme_library", "acme_absent"], "llmb_acme", "llmb-acme")
assert "llmb_acme" not in sys.modules
print(baseline.model_dump_json())
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[NamespaceEvidence, LibraryBaseline]:
    """Of a plugin that changes torch, and needs a library that does so by being imported."""
    site = tmp_path_factory.mktemp("site")
    files = {"llmb_acme.py": PLUGIN_MODULE, "early.py": EARLY}
    info = install(site, "llmb-acme", {"acme": "llmb_acme"}, files)
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-library\n")
    library = install(site, "acme-library", {}, {"acme_library.py": LIBRARY}, version="2.5")
    (library / "top_level.txt").write_text("acme_library\n")
    (library / "RECORD").write_text("acme_library.py,,\n")
    worker, alone = in_python(BOTH, folder=site)
    return (
        NamespaceEvidence.model_validate_json(worker),
        LibraryBaseline.model_validate_json(alone),
    )


@pytest.fixture
def evidence(both: tuple[NamespaceEvidence, LibraryBaseline]) -> NamespaceEvidence:
    return both[0]


@pytest.fixture
def baseline(both: tuple[NamespaceEvidence, LibraryBaseline]) -> LibraryBaseline:
    return both[1]


def judged(evidence: NamespaceEvidence, baseline: LibraryBaseline, *names: str) -> Finding:
    """Return N1 of a run in which no more than ``names`` was replaced."""
    chosen = tuple(r for r in evidence.replaced if r.name in names)
    assert {r.name for r in chosen} == {*names}
    evidence = evidence.model_copy(update={"replaced": chosen})
    return rule_n1.finding(evidence, baseline, (), "namespace.json")


def test_the_library_is_named_with_version_and_digest(evidence: NamespaceEvidence) -> None:
    (library,) = evidence.libraries
    assert (library.distribution, library.version) == ("acme-library", "2.5")
    assert library.modules == ("acme_library",)
    assert library.sha256 is not None
    silu = found(evidence, "torch.nn.functional.silu")
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
    name = "torch._inductor.codegen.common.OpDecompositions.sigmoid"
    sigmoid = found(evidence, name)
    assert (sigmoid.kind, sigmoid.origin, sigmoid.distribution) == (
        *("foreign", "plugin"),
        "llmb-acme",
    )
    assert judged(evidence, baseline, name).status is Status.FAIL


def test_the_librarys_code_in_a_module_of_torch_that_came_later_is_noted(
    evidence: NamespaceEvidence, baseline: LibraryBaseline
) -> None:
    name = "torch._inductor.codegen.common.OpDecompositions.relu"
    finding = judged(evidence, baseline, name)
    assert finding.status is Status.PASS
    assert name in finding.message


def test_code_that_was_in_torch_before_the_watch_began_is_seen(
    evidence: NamespaceEvidence,
) -> None:
    (early,) = [r for r in evidence.replaced if (r.place or "").startswith("early.")]
    assert (early.name, early.kind) == ("torch.nn.functional.hardswish", "foreign")
