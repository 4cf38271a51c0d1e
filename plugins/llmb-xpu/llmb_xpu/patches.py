"""Callables of torch's Python replaced by Intel's extension: compared before and after, 2.8.0.

``tests/test_patches.py`` repeats the comparison. No callable is in ``torch.optim``, autograd or the
model. The import also puts kernels over torch's (three run in a step: ``matmul``, ``cat`` and
``mean``). The audit compares kernels and callables with an import of the extension alone.
"""

from __future__ import annotations

from llmb.plugin import DeclaredPatch

_REASONS = {
    "torch.Tensor.__format__": "prints tensors of the extension's own",
    "torch.Tensor.numpy": "reads tensors of the extension's own",
    "torch.backends.mkldnn.verbose": "the extension's switch for oneDNN's log",
    "torch.cpu.amp.GradScaler": "the extension's scaler; the harness scales nothing",
    "torch.embedding_bag": "a CPU kernel for embedding bags; no workload has one",
    "torch.fx._symbolic_trace.Tracer.is_leaf_module": "lets tracing stop at repacked layers",
    "torch.jit.trace": "traces with the extension's fusions; nothing is traced here",
}


def declared() -> list[DeclaredPatch]:
    """Return every replacement, with its reason."""
    return [DeclaredPatch(target=target, reason=reason) for target, reason in _REASONS.items()]
