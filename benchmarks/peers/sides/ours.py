"""llmb's own reference: model, optimizer and train loop, with the plugin cpu's choice of kernel."""

from __future__ import annotations

import itertools

import torch
from gate import Gate
from job import Job
from torch import Tensor, nn

import llmb
from llmb.plugin.builtin.cpu import llmb_optimizer_options
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_adamw
from llmb.reference.train_loop import Step, train_loop


def eager(job: Job, gate: Gate) -> None:
    """Measure the reference as it is."""
    _measure(job, gate, compiled=False)


def inductor(job: Job, gate: Gate) -> None:
    """Measure the reference compiled by inductor."""
    _measure(job, gate, compiled=True)


def _measure(job: Job, gate: Gate, *, compiled: bool) -> None:
    model = build(job.shape, 0, torch.bfloat16)
    gate.about.parameters = sum(p.numel() for p in model.parameters())
    gate.about.versions = {"llmb": llmb.__version__, "torch": torch.__version__}
    gate.about.note = "inductor" if compiled else "eager"
    parameters = list(model.parameters())
    if compiled:
        model.compile()
    {"train": _train, "forward": _forward, "generate": _generate}[job.mode](
        job, gate, model, parameters
    )


def _train(job: Job, gate: Gate, model: nn.Module, parameters: list[nn.Parameter]) -> None:
    options = llmb_optimizer_options()
    optimizer = build_adamw(parameters, **options)
    gate.about.note += ", fused AdamW" if options.get("fused") else ""
    steps = (Step(index=i, seed=i, fence=False) for i in itertools.count())

    def batches(seed: int) -> list[Batch]:
        return [make_batch(seed, job.batch_size, job.shape)]

    for _ in train_loop(model, optimizer, steps, batches):
        pass


@torch.inference_mode()
def _forward(job: Job, gate: Gate, model: nn.Module, parameters: list[nn.Parameter]) -> None:
    model.eval()
    for seed in itertools.count():
        model(make_batch(seed, job.batch_size, job.shape).ids)
        gate.passed()


@torch.inference_mode()
def _generate(job: Job, gate: Gate, model: nn.Module, parameters: list[nn.Parameter]) -> None:
    generate = _generator()
    model.eval()
    for seed in itertools.count():
        prompt = make_batch(seed, job.batch_size, job.shape).ids[:, : job.prompt]
        generate(model, prompt, job.new_tokens)
        gate.passed()


def _generator():  # noqa: ANN202
    """Return what decodes greedily with a static cache: ``(model, prompt, new_tokens) -> ids``."""
    try:
        from llmb.reference import generate
    except ImportError:
        raise SystemExit("this llmb has no reference/generate.py yet") from None

    def run(model: nn.Module, prompt: Tensor, new_tokens: int) -> Tensor:
        return generate.generate(model, prompt, new_tokens)

    return run
