"""Replayed steps computed once more, in a wider format and without any plugin (rule L1)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from llmb import workloads
from llmb.errors import RunFailedError
from llmb.observe.host_bytes import sha256_of
from llmb.observe.passes import Samples, bare, plain_pass
from llmb.observe.rerun import in_more_parts, wide
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights_file import WeightsFile, checked_bytes
from llmb.observe.wide_products import as_computed
from llmb.records import audited
from llmb.wire.messages import KeptStep, RecomputeOrder


def recomputed(order: RecomputeOrder) -> dict[str, Tensor]:
    """Return the gradients of the steps of ``order`` as ``ROWS``, ``[steps, elements]``, float32.

    The elements of each row are the elements that the honest run showed of the step. Example: steps
    7 and 31 give two rows. Each judged step has an array of its own, such as ``step-12``. There are
    no rows and no arrays if torch cannot use the device without a plugin.

    Raises:
        RunFailedError: a file was altered, or the honest run shows other gradients than the run
            had before the checked steps were known.
    """
    where = load(_read(order, audited.LEDGER_VALUES))[audited.WHERE]
    shown = load(_read(order, audited.REPLAYED))[audited.ROWS]
    for step in order.steps:
        if sha256_of(shown[step.index]) != step.commitment:
            raise RunFailedError(
                f"the honest run shows other gradients of step {step.index} than it had in its "
                "pause: they were altered"
            )
    known = _is_known(order.device)
    steps, judged = (order.steps, order.judged) if known else ((), ())
    rows = [_row(order, step, where[step.index].long()) for step in steps]
    found = {audited.ROWS: torch.stack(rows) if rows else torch.zeros(0, where.shape[1])}
    for step in judged:
        row = _row(order, step, where[step.index].long())
        found[audited.judged_pass(step.index)] = row
    return found


def _is_known(device: str) -> bool:
    """Tell whether torch can compute on ``device`` without a package that adds the device.

    A device known to torch counts even without free memory or a driver: the step then fails.
    """
    try:
        torch.empty(1, device=torch.device(device))
    except (
        NotImplementedError,
        ImportError,
        AssertionError,
    ):  # torch knows the device's name, and has no kernels for the device
        return False
    except RuntimeError as error:
        return "device type at start of device string" not in str(error)
    return True


def _row(order: RecomputeOrder, step: KeptStep, where: Tensor) -> Tensor:
    config, shape = order.config, workloads.of(order.config).shape
    numerics = wide(config.precision, order.device)
    batch = StepBatches(config, shape).make(step.token_seed)
    sizes = {name: p.numel() for name, p in bare(shape).named_parameters()}

    def once(parts: int) -> Tensor:
        collect = Samples(where, sizes)
        with as_computed(config, numerics.dtype, numerics.device):
            plain_pass(file.read, shape, batch, numerics, collect, parts=parts)
        return collect.values

    with WeightsFile(Path(order.scratch_folder) / step.weights, step.sha256) as file:
        return in_more_parts(once, config, config.global_batch_size, config.parts_of_all)


def _read(order: RecomputeOrder, name: str) -> bytes:
    return checked_bytes(Path(order.evidence_folder) / name, order.digests[name])
