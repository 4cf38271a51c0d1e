"""What importing the extension replaces in torch, compared anew in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from fnmatch import fnmatchcase

import pytest
from llmb_xpu import patches

_COMPARE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import llmb.worker, torch
from llmb.observe.optimizer import OptimizerBaseline

OptimizerBaseline()

WRAPPED = (property, staticmethod, classmethod)

def callables():
    found = {}
    for path, module in list(sys.modules.items()):
        if module is None or path.partition(".")[0] != "torch":
            continue
        for name, value in list(vars(module).items()):
            if callable(value):
                found[f"{path}.{name}"] = value
            if isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                for part, method in list(vars(value).items()):
                    if callable(method) or isinstance(method, WRAPPED):
                        found[f"{value.__module__}.{value.__qualname__}.{part}"] = method
    return found

def kernels():
    names = torch._C._dispatch_get_all_op_names()
    return {name: set(torch._C._dispatch_dump(name).splitlines()) for name in names}

before, kernels_before = callables(), kernels()
from torch import nn
from llmb_xpu import extension
extension.keep_float32()
extension.repack(nn.Sequential(nn.Linear(64, 64, bias=False)).to(torch.bfloat16))
after, kernels_after = callables(), kernels()

replaced = [name for name, value in before.items() if after.get(name) is not value]
new = [
    name
    for name, value in after.items()
    if name not in before
    and str(getattr(value, "__module__", "")).startswith("intel_extension_for_pytorch")
]
operators = [
    name.replace("aten::", "torch.ops.aten.")
    for name, lines in kernels_before.items()
    if any("ipex" in line for line in kernels_after[name] - lines)
]
print(json.dumps([replaced, new, operators]))
"""
_EXISTING = """
import json, sys, torch
def exists(name):
    value = torch
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True
print(json.dumps([name for name in json.loads(sys.argv[1]) if exists(name)]))
"""


def python(script: str, *arguments: str) -> list[list[str]]:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def replaced() -> set[str]:
    """Everything of torch that importing and using the extension replaces, by dotted name."""
    callables, new, operators = python(_COMPARE)
    # Inherited, or served by a module's __getattr__: replaced although nothing of the name was set.
    shadowed = python(_EXISTING, json.dumps(new))
    return {*callables, *shadowed, *operators}


def test_every_replacement_is_declared(replaced: set[str]) -> None:
    targets = [patch.target for patch in patches.declared()]
    undeclared = [n for n in replaced if not any(fnmatchcase(n, target) for target in targets)]
    assert undeclared == []
    assert len(replaced) > 40


def test_nothing_is_declared_that_is_not_replaced(replaced: set[str]) -> None:
    idle = [
        patch.target
        for patch in patches.declared()
        if not any(fnmatchcase(name, patch.target) for name in replaced)
    ]
    assert idle == []


def test_the_optimizers_step_is_not_among_them(replaced: set[str]) -> None:
    steps = {"torch.optim.adamw.AdamW.step", "torch.optim.adam.Adam.step", "torch.optim.AdamW"}
    assert not steps & replaced
    targets = [patch.target for patch in patches.declared()]
    assert not any(fnmatchcase(step, target) for step in steps for target in targets)


def test_every_declaration_has_a_reason() -> None:
    assert all(len(patch.reason) > 20 for patch in patches.declared())
