"""Replacements of torch by import and use of the extension, compared anew in fresh processes."""

from __future__ import annotations

import json
import sys

import pytest
from llmb_xpu import patches

from llmb.audit import namespace as rule_n1
from llmb.records.evidence import LibraryBaseline, NamespaceEvidence
from llmb.records.finding import Finding, Status
from tests import needs, patience

#: A worker's work with the plugin, on a model of one layer.
_WORKER = """
from llmb.observe.namespace import NamespaceWatch

watch = NamespaceWatch()
import llmb_xpu.plugin
import torch
from torch import nn
from llmb.config import Precision
from llmb_xpu import extension

extension.keep_float32()
offered = {offer.name: isinstance(offer, Precision) for offer in extension.precisions()}
dtype = torch.bfloat16 if offered["BF16"] else torch.float32  # BF16 needs AVX-512
model = extension.repack(nn.Sequential(nn.Linear(64, 64, bias=False)).to(dtype))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.ones(2, 64, dtype=dtype)).sum().backward()
optimizer.step()
print(watch.evidence("llmb_xpu.plugin", "llmb-xpu").model_dump_json())
"""
_LIBRARY = """
import json, sys
from llmb.observe.namespace import library_baseline

modules = json.loads(sys.argv[1])
print(library_baseline(modules, "llmb_xpu.plugin", "llmb-xpu").model_dump_json())
"""

pytestmark = pytest.mark.xdist_group("patches")  # two processes serve all tests


def python(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = patience.run(command)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def evidence() -> NamespaceEvidence:
    needs.package("intel_extension_for_pytorch")
    return NamespaceEvidence.model_validate_json(python(_WORKER))


@pytest.fixture(scope="module")
def finding(evidence: NamespaceEvidence) -> Finding:
    """Return N1's finding, as if no patch was declared."""
    modules = [name for library in evidence.libraries for name in library.modules]
    baseline = LibraryBaseline.model_validate_json(python(_LIBRARY, json.dumps(modules)))
    return rule_n1.finding(evidence, baseline, (), "namespace.json")


def test_the_import_of_the_extension_alone_explains_every_replacement(
    evidence: NamespaceEvidence, finding: Finding
) -> None:
    assert finding.status is Status.PASS, finding.message
    assert finding.message.startswith("intel-extension-for-pytorch (2.8.0, sha256 ")
    kernels = {r.name for r in evidence.replaced if r.kind == "kernel"}
    assert {"torch.ops.aten.matmul", "torch.ops.aten.cat", "torch.ops.aten.mean.dim"} <= kernels


def test_nothing_of_the_optimizer_is_among_them(evidence: NamespaceEvidence) -> None:
    assert len(evidence.replaced) > 30
    assert not [r.name for r in evidence.replaced if r.name.startswith("torch.optim")]


def test_exactly_the_replaced_callables_are_declared(evidence: NamespaceEvidence) -> None:
    callables = {r.name for r in evidence.replaced if r.kind == "callable"}
    assert {patch.target for patch in patches.declared()} == callables


def test_every_declaration_has_a_reason() -> None:
    assert all(len(patch.reason) > 20 for patch in patches.declared())
