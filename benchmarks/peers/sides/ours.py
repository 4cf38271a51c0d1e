"""llmb's own reference: its models and loops, and what the plugin cpu makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from gate import Gate
from job import Job
from torch import Tensor

import llmb
from llmb.config import BF16, RunConfig
from llmb.plugin.builtin import cpu
from llmb.processes.modes import executors
from llmb.reference.data import Batch, make_batch
from llmb.reference.forward import forward_loop
from llmb.reference.generate import OneToken, generate_loop, make_desk
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.train_loop import Step, train_loop


def eager(job: Job, gate: Gate) -> None:
    """Measure the reference as it is."""
    _measure(job, gate, "eager")


def inductor(job: Job, gate: Gate) -> None:
    """Measure the reference compiled by inductor."""
    _measure(job, gate, "inductor")


def _measure(job: Job, gate: Gate, executor: str) -> None:
    config = RunConfig(
        workload=job.workload,
        mode=job.mode,
        plugin="cpu",
        plugin_options={
            **{option.name: option.default for option in cpu.llmb_options()},
            "keep_memory": job.keep_memory,
        },
        device="cpu",
        precision=BF16,
        batch_size=job.batch_size,
        executor=executor,
        seed=0,
        warmup_steps=1,
        timed_steps=1,
        repeats=1,
    )
    model = cpu.llmb_post_process_model(build(job.shape, 0, torch.bfloat16), config)
    gate.about.parameters = sum(p.numel() for p in model.parameters())
    gate.about.versions = {"llmb": llmb.__version__, "torch": torch.__version__}
    gate.about.note = executor
    if job.mode == "generate":
        _generate(job, gate, executors.program(model, config))
        return
    program, parameters = executors.program(model, config), list(model.parameters())
    if job.mode == "train":
        options = cpu.llmb_optimizer_options()
        gate.about.note += ", fused AdamW" if options.get("fused") else ""
        optimizer = build_optimizer(parameters, OFFICIAL_OPTIMIZER, **options)
        for _ in train_loop(program, optimizer, _steps(), lambda seed: _batches(job, seed)):
            pass  # the hook of the optimizer passes the gate
    model.eval()
    for _ in forward_loop(program, _steps(), lambda seed: _batches(job, seed)):
        gate.passed()


def _generate(job: Job, gate: Gate, program: executors.Program) -> None:
    """Decode greedily, as the others do: no side draws, so none is faster at drawing."""
    gate.about.note += ", greedy, static cache"
    size = (job.batch_size, job.prompt, job.new_tokens)
    desk = make_desk(job.shape, *size, torch.bfloat16)

    def greedy(logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1, keepdim=True)

    def prompt(seed: int) -> Tensor:
        return make_batch(seed, job.batch_size, job.shape).ids[:, : job.prompt]

    for _ in generate_loop(OneToken(program, greedy), desk, _steps(), prompt):
        gate.passed()


def _steps() -> Iterator[Step]:
    return (Step(index=i, seed=i, fence=False) for i in itertools.count())


def _batches(job: Job, seed: int) -> list[Batch]:
    return [make_batch(seed, job.batch_size, job.shape)]
