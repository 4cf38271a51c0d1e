"""The hooks of an XLA device, besides the backend."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from llmb.config import BF16, FP32, Mode, Precision, Refused, RunConfig, environment
from llmb.errors import UnavailableError
from llmb.plugin import DeclaredPatch, hookimpl

from .backend import HOST, PJRT_DEVICE, XlaBackend, client
from .pairing import torch_xla


@hookimpl
def llmb_backend(config: RunConfig) -> XlaBackend:
    """Start the PJRT client.

    Raises:
        UnavailableError: the mode is not train, or the device is missing.
    """
    if config.mode is not Mode.TRAIN:
        raise UnavailableError(
            f"mode {config.mode.value} runs in torch's inference mode, in which torch_xla 2.9 "
            "cannot multiply matrices (pytorch/pytorch#170419): choose a workload of mode train, "
            "or another --plugin"
        )
    return XlaBackend(config.device)


@hookimpl
def llmb_environment_variables() -> dict[str, str]:
    """Fix the client found in ``offer`` for all processes (the import sets the variable)."""
    return {PJRT_DEVICE: environment()[PJRT_DEVICE]}


@hookimpl
def llmb_precisions() -> list[Precision | Refused]:
    """Offer XLA's two training formats, and declare the format computed by the hardware.

    On the host's processor XLA widens every BF16 product to FP32; a TPU makes an FP32 product of
    six BF16 products.
    """
    bf16 = BF16.model_copy(update={"native": client() != HOST})
    fp32 = FP32.model_copy(update={"native": client() != "TPU"})
    return [
        *sorted((bf16, fp32), key=lambda precision: not precision.native),
        Refused(name="FP16", reason="XLA emulates it: on the host 200 times slower than FP32"),
        Refused(name="TF32", reason="a format of GPUs, which torch_xla no longer drives"),
    ]


@hookimpl
def llmb_warmup_steps() -> int:
    """Request three: the first step creates the optimizer's state, so the second is recompiled."""
    return 3


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Bind this process to its device, and keep FP32 honest: a TPU's default is BF16 products."""
    xla = torch_xla()
    index = config.device.partition(":")[2]
    xla.device(int(index or 0))
    if config.precision.name == FP32.name:
        xla._XLAC._xla_set_mat_mul_precision("highest")


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Choose the kernel with the fastest recording; all kernels compile to two programs."""
    return {"foreach": True}


@hookimpl
def llmb_telemetry() -> dict[str, float]:
    """Return the number of programs compiled until now."""
    compiled = torch_xla().debug.metrics.metric_data("CompileTime")  # codespell:ignore
    return {"compilations": compiled[0] if compiled else 0}  # None before the first


@hookimpl
def llmb_program(tensors: Sequence[Tensor]) -> str:
    """Give the recorded step as HLO."""
    text: str = torch_xla()._XLAC._get_xla_tensors_hlo(list(tensors))
    return text


@hookimpl
def llmb_patches() -> list[DeclaredPatch]:
    """Declare callables replaced by torch_xla 2.9; workloads that clip call the second callable."""
    return [
        DeclaredPatch(
            target="torch.distributed.new_group",
            reason="makes process groups of XLA's own collectives",
        ),
        DeclaredPatch(
            target="torch.nn.utils.clip_grad_norm_",
            reason="clips without reading the norm back to the host",
        ),
        DeclaredPatch(target="torch.nn.GRU", reason="a GRU whose loop XLA compiles once (scan)"),
    ]


@hookimpl
def llmb_describe_system() -> dict[str, str]:
    """Return the compiler's flags, which the import of torch_xla extends."""
    return {"xla_flags": environment().get("XLA_FLAGS", "").strip()}
