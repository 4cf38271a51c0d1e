"""The package's declarations, and its imports from llmb."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import llmb_xla
from llmb_xla.plugin import llmb_patches

from tests.e2e import harness

#: Prints every callable of torch that changes with the import of torch_xla.
_REPLACED = """
import sys, warnings
import torch, torch.distributed
import torch._dynamo  # replaces torch.manual_seed, and torch_xla imports it

def callables():
    found = {}
    for name, module in list(sys.modules.items()):
        if module is None or name.partition(".")[0] != "torch":
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[f"{name}.{key}"] = value
    return found

warnings.simplefilter("ignore")
before = callables()
import torch_xla
after = callables()
print(*(name for name, value in before.items() if after.get(name) is not value), sep="\\n")
"""


def test_exactly_the_callables_that_torch_xla_replaces_are_declared() -> None:
    command = [sys.executable, "-c", _REPLACED]
    done = subprocess.run(
        command, env=harness.environment(), capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(patch.target for patch in llmb_patches())


def test_the_plugin_imports_only_what_llmb_keeps_open_for_vendors() -> None:
    # The host's memory and energy come from the built-in plugin's device: the same processor.
    allowed = {"llmb.plugin", "llmb.config", "llmb.errors", "llmb.plugin.builtin.cpu"}
    imported = {
        node.module
        for file in Path(llmb_xla.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llmb.")
    }
    assert imported == allowed
