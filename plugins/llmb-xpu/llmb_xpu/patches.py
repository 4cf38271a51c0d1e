"""What importing Intel's extension replaces in torch: compared before and after, release 2.8.0.

``tests/test_patches.py`` compares again. None of it touches ``AdamW.step``, autograd or the model;
three kernels on this list do run in a step: ``matmul``, ``cat`` and ``mean``.
"""

from __future__ import annotations

from llmb.plugin import DeclaredPatch

_PYTHON = {
    "torch.Tensor.__format__": "prints tensors of the extension's own",
    "torch.Tensor.numpy": "reads tensors of the extension's own",
    "torch.backends.mkldnn.verbose": "the extension's switch for oneDNN's log",
    "torch.cpu.amp.GradScaler": "the extension's scaler; the harness scales nothing",
    "torch.embedding_bag": "a CPU kernel for embedding bags; no workload has one",
    "torch.fx._symbolic_trace.Tracer.is_leaf_module": "lets tracing stop at repacked layers",
    "torch.jit.trace": "traces with the extension's fusions; nothing is traced here",
}
#: Importing the extension imports ``torch._dynamo``, which wraps these itself so that it does not
#: compile into them: the functions are torch's own, one wrapper deeper. Kinds of compiled artifacts
#: register themselves in the same way.
_BY_DYNAMO = (
    "torch.compiler._cache.CacheInfo.*_artifacts",
    "torch.fx._symbolic_trace.Tracer.trace",
    "torch.jit._get_trace_graph",
    "torch.jit.trace_module",
    "torch.optim.*._init_group",
    "torch.optim.*._fused_*",
    "torch.optim.lbfgs.LBFGS.step",
    "torch.optim.sparse_adam.SparseAdam.step",
)
#: Kernels registered over torch's in its dispatcher, by operator and overload.
_CPU_KERNELS = (
    "_adaptive_avg_pool*",
    "adaptive_avg_pool*",
    "avg_pool*",
    "cat.out",
    "group_norm",
    "index_select*",
    "layer_norm",
    "matmul*",
    "mean.dim",
    "native_group_norm*",
    "reflection_pad*",
    "replication_pad*",
    "sum.dim_IntList",
)
_AUTOCAST_KERNELS = (
    "_addmm_activation",
    "_transform_bias_rescale_qkv",
    "cat",
    "index_copy*",
    "stack",
)


def declared() -> list[DeclaredPatch]:
    """Return every replacement, with its reason."""
    wrapped = "torch's own doing, as it imports torch._dynamo for the extension"
    kernel = "a CPU kernel of the extension, registered over torch's own"
    autocast = "the extension's autocast rule on CPUs; the harness uses no autocast"
    reasons = dict(_PYTHON)
    reasons |= dict.fromkeys(_BY_DYNAMO, wrapped)
    reasons |= {f"torch.ops.aten.{name}": kernel for name in _CPU_KERNELS}
    reasons |= {f"torch.ops.aten.{name}": autocast for name in _AUTOCAST_KERNELS}
    return [DeclaredPatch(target=target, reason=reason) for target, reason in reasons.items()]
