"""N1: what a library's import explains passes, what is declared is flagged, the rest fails."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit import namespace
from llmb.audit.namespace import finding as judge
from llmb.records.evidence import (
    Library,
    LibraryBaseline,
    NamespaceEvidence,
    Origin,
    Replacement,
    Stranger,
)
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import DeclaredPatch

LIBRARY = Library(distribution="acme-lib", version="2.5", sha256="ab" * 32, modules=("acme",))


def replacement(name: str = "torch.nn.functional.silu", **changes: Any) -> Replacement:
    values: dict[str, Any] = {
        "name": name,
        "kind": "callable",
        "origin": "library",
        "distribution": "acme-lib",
        "place": "acme.silu",
        "sha256": "cd" * 32,
    }
    return Replacement(**{**values, **changes})


def kernel(**changes: Any) -> Replacement:
    values: dict[str, Any] = {
        "kind": "kernel",
        "dispatch_key": "CPU",
        "origin": "unknown",
        "distribution": None,
        "place": "/build/Matmul.cpp",
        "sha256": None,
    }
    return replacement("torch.ops.aten.mm", **{**values, **changes})


def finding(
    *replaced: Replacement,
    confirmed: tuple[Replacement, ...] | None = (),
    declared: tuple[str, ...] = (),
    libraries: tuple[Library, ...] = (LIBRARY,),
) -> Finding:
    """Return N1 of ``replaced``; ``confirmed`` is None where no baseline was taken."""
    evidence = NamespaceEvidence(
        callables=9, operators=5, replaced=replaced, device_kernels=0, libraries=libraries
    )
    baseline = None
    if confirmed is not None:
        baseline = LibraryBaseline(imported=("acme",), failed={}, replaced=confirmed)
    patches = [DeclaredPatch(target=target, reason="it is faster") for target in declared]
    return judge(evidence, baseline, patches, "namespace.json", "library.json")


def met(
    origin: Origin,
    distribution: str | None = None,
    type: str = "acme.Lazy",
    what: str = "gradient",
) -> Finding:
    """Return N1 of a run whose gradients were of a class of ``origin``."""
    stranger = Stranger(
        what=what,
        type=type,
        origin=origin,
        distribution=distribution,
        first_step=2,
        looks=40,
    )
    evidence = NamespaceEvidence(
        callables=9,
        operators=5,
        replaced=(),
        device_kernels=0,
        libraries=(),
        strangers=(stranger,),
    )
    return judge(evidence, None, [], "namespace.json")


def test_a_gradient_of_a_class_of_the_plugins_fails_and_the_class_is_named() -> None:
    found = met("plugin", "llmb-acme")
    assert found.status is Status.FAIL
    assert found.message == (
        "a step was not what it seems: gradient: acme.Lazy of llmb-acme (from step 2 on, 40 "
        "times): a hook or function of the backward pass may return a plain torch.Tensor only"
    )


SHARDED = "torch.distributed.tensor.DTensor"


@pytest.mark.parametrize(
    ("origin", "distribution", "type", "what"),
    [
        ("needed", "torch", "torch.sparse.SparseSemiStructuredTensor", "gradient"),
        ("needed", "networkx", SHARDED, "gradient"),
        ("unknown", None, SHARDED, "gradient"),
        ("needed", "torch", SHARDED, "hook of all modules"),
        ("python", None, "threading.Thread.run", "hook of all modules"),
        ("library", "torchao", "torchao.hook", "signal handler"),
        ("library", "torchao", "torchao.float8.Float8Tensor", "gradient"),
    ],
)
def test_what_runs_any_function_it_is_given_fails_whosever_it_is(
    origin: Origin, distribution: str | None, type: str, what: str
) -> None:
    assert met(origin, distribution, type, what).status is Status.FAIL


@pytest.mark.parametrize("origin", ["library", "other", "unknown"])
def test_a_class_of_nobody_known_fails(origin: Origin) -> None:
    assert met(origin, "acme-lib").status is Status.FAIL


def test_a_class_of_torchs_or_of_a_known_package_passes_and_is_named() -> None:
    assert met("needed", "torch", SHARDED).status is Status.PASS
    found = met("library", "torchao", what="parameter")
    assert (found.status, found.message[:40]) == (
        Status.PASS,
        "beside torch's own: parameter: acme.Lazy",
    )


def test_a_run_in_which_nothing_was_replaced_passes() -> None:
    found = finding()
    assert (found.id, found.level, found.status) == ("N1", Level.BLOCK, Status.PASS)
    assert found.evidence == ("namespace.json", "library.json")


def test_what_the_librarys_import_alone_replaces_is_noted_with_version_and_digest() -> None:
    found = finding(replacement(), confirmed=(replacement(),))
    assert found.status is Status.PASS
    assert found.message == "acme-lib (2.5, sha256 abababababab) replaces torch.nn.functional.silu"


def test_a_kernel_is_the_librarys_whose_import_brought_it() -> None:
    found = finding(kernel(), confirmed=(kernel(),))
    assert found.status is Status.PASS
    assert "replaces torch.ops.aten.mm" in found.message


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": "ef" * 32},
        {"place": "acme.other"},
        {"name": "torch.nn.functional.gelu"},
        {"place": "acme.silu, changed in place"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_from_what_the_import_does_is_not_the_librarys(changes: Any) -> None:
    found = finding(replacement(**{"name": "torch.nn.functional.silu", **changes}))
    assert found.status is Status.FAIL


def test_a_kernel_on_another_key_than_the_librarys_is_not_the_librarys() -> None:
    found = finding(kernel(dispatch_key="AutocastCPU"), confirmed=(kernel(),))
    assert found.status is Status.FAIL
    assert "torch.ops.aten.mm on AutocastCPU" in found.message


@pytest.mark.parametrize("target", ["torch.nn.functional.silu", "torch.nn.*", "*.silu"])
def test_what_is_declared_is_flagged_with_its_reason(target: str) -> None:
    found = finding(replacement(origin="plugin"), declared=(target,))
    assert found.status is Status.FLAG
    assert "torch.nn.functional.silu" in found.message
    assert "it is faster" in found.message


def test_what_is_not_declared_fails_and_is_named() -> None:
    found = finding(replacement(origin="plugin"), declared=("torch.nn.functional.gelu",))
    assert found.status is Status.FAIL
    assert found.message == (
        "replaced and not declared: torch.nn.functional.silu by acme.silu of acme-lib"
    )


@pytest.mark.parametrize(("declared", "status"), [(("*",), Status.FLAG), ((), Status.FAIL)])
def test_a_package_that_the_plugin_does_not_require_is_named_with_what_to_do(
    declared: tuple[str, ...], status: Status
) -> None:
    advice = ". If torchao belongs to the plugin, require the package in the plugin's metadata"
    found = finding(replacement(origin="other", distribution="torchao"), declared=declared)
    assert found.status is status
    assert found.message.endswith(advice)
    found = finding(replacement(origin="plugin"), declared=declared)
    assert "require the package" not in found.message


def test_one_that_is_not_declared_outweighs_all_that_is_explained() -> None:
    other = replacement("torch.add", origin="plugin")
    found = finding(replacement(), other, confirmed=(replacement(),))
    assert found.status is Status.FAIL
    assert "torch.nn.functional.silu" not in found.message


@pytest.mark.parametrize(
    "name",
    ["torch.optim.adam.adam", "llmb.processes.worker.fence", "builtins.len", "time.monotonic_ns"],
)
def test_what_nobody_may_replace_fails_though_confirmed_and_declared(name: str) -> None:
    found = finding(replacement(name), confirmed=(replacement(name),), declared=("*",))
    assert found.status is Status.FAIL
    assert name in found.message


def test_a_package_that_is_only_called_alike_may_be_declared() -> None:
    assert finding(replacement("torch.optimism.f"), declared=("*",)).status is Status.FLAG


def test_the_librarys_code_where_nobody_saw_another_is_noted() -> None:
    foreign = replacement("torch._inductor.codegen.triton.TritonOverrides.maximum", kind="foreign")
    assert finding(foreign).status is Status.PASS


@pytest.mark.parametrize("origin", ["plugin", "other", "unknown"])
def test_anybody_elses_code_where_nobody_saw_another_fails(origin: str) -> None:
    foreign = replacement("torch._inductor.lowering.f", kind="foreign", origin=origin)
    assert finding(foreign).status is Status.FAIL


@pytest.mark.parametrize("replaced", [replacement(), kernel()], ids=["callable", "kernel"])
def test_without_a_baseline_what_may_be_a_librarys_is_not_known(replaced: Replacement) -> None:
    found = finding(replaced, confirmed=None)
    assert found.status is Status.NOT_OBSERVED
    assert replaced.name in found.message


def test_without_a_baseline_what_can_be_no_librarys_fails() -> None:
    assert finding(replacement(origin="plugin"), confirmed=None).status is Status.FAIL
    assert finding(kernel(), confirmed=None, libraries=()).status is Status.FAIL


def test_of_many_the_first_three_are_named() -> None:
    found = finding(*(replacement(f"torch.f{n}", origin="plugin") for n in range(5)))
    assert "torch.f2" in found.message
    assert "torch.f3" not in found.message
    assert found.message.endswith("and 2 more")


def test_more_pairs_than_can_be_compared_are_refused_before_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespace, "_MOST_PAIRS", 5)
    seen = [replacement(f"torch.f{n}") for n in range(3)]
    with pytest.raises(ValueError, match="3 replacements and 2 declarations"):
        finding(*seen, declared=("torch.f0", "torch.f1"))
