"""optimum-benchmark: its training and its inference scenario with the PyTorch backend.

Its own training figure is too high by the number of steps (the volume of all steps over the mean
latency of one), so its figure is not read: the gate counts steps and seconds, as for every side.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gate import Gate
from job import Job
from optimum_benchmark import (
    Benchmark,
    BenchmarkConfig,
    InferenceConfig,
    InlineConfig,
    PyTorchConfig,
    TrainingConfig,
)
from optimum_benchmark.backends.pytorch.backend import PyTorchBackend
from sides.hugging_face import model_of

from llmb.reference.recipe import OFFICIAL_OPTIMIZER

_STEPS = 10**6


def scenario(job: Job, gate: Gate) -> None:
    """Run a scenario that does not end; a model without a hub needs its weights on disk."""
    gate.about.versions = {
        name: version(name) for name in ("optimum-benchmark", "transformers", "accelerate", "torch")
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        torch.manual_seed(0)
        model = model_of(job)
        gate.about.parameters = sum(p.numel() for p in model.parameters())
        model.save_pretrained(path)
        del model
        wanted = _training(job, folder) if job.mode == "train" else _inference(job, gate)
        if job.mode == "train":
            gate.about.note = "training scenario: transformers.Trainer, fused AdamW, no clipping"
        config = BenchmarkConfig(
            name=job.workload,
            launcher=InlineConfig(),
            scenario=wanted,
            backend=PyTorchConfig(
                model=str(path),
                task="text-generation",
                library="transformers",
                model_type=job.family,
                device="cpu",
                torch_dtype="bfloat16",
                attn_implementation="sdpa",
                eval_mode=job.mode != "train",
                cache_implementation="static" if job.mode == "generate" else None,
            ),
        )
        Benchmark.launch(config)


def _training(job: Job, folder: str) -> TrainingConfig:
    constants = OFFICIAL_OPTIMIZER
    return TrainingConfig(
        max_steps=_STEPS,
        warmup_steps=1,
        latency=True,
        dataset_shapes={
            "dataset_size": 512,
            "sequence_length": job.shape.sequence_length,
            "num_choices": 1,
        },
        training_arguments={
            "per_device_train_batch_size": job.batch_size,
            "use_cpu": True,
            "max_steps": _STEPS,
            "output_dir": folder,
            "learning_rate": constants.lr,
            "lr_scheduler_type": "constant",
            "weight_decay": constants.weight_decay,
            "adam_beta1": constants.betas[0],
            "adam_beta2": constants.betas[1],
            "adam_epsilon": constants.eps,
            "optim": "adamw_torch_fused",
            "max_grad_norm": 0.0,
            "logging_steps": _STEPS,
            "disable_tqdm": True,
        },
    )


def _inference(job: Job, gate: Gate) -> InferenceConfig:
    """Return the inference scenario; every call of the model's ``generate`` is a step.

    It knows no bare forward pass of a causal model: its prefill makes one token, and so the logits
    of the last position only.
    """
    new_tokens = job.new_tokens if job.mode == "generate" else 1
    length = job.prompt if job.mode == "generate" else job.shape.sequence_length
    gate.about.note = (
        "inference scenario: generate, greedy, static cache"
        if job.mode == "generate"
        else "inference scenario: prefill; logits of the last position only, so less work"
    )
    generate = PyTorchBackend.generate

    def counted(self: PyTorchBackend, inputs: Any, kwargs: Any) -> Any:
        made = generate(self, inputs, kwargs)
        gate.passed()
        return made

    PyTorchBackend.generate = counted
    return InferenceConfig(
        warmup_runs=0,
        iterations=_STEPS,
        duration=10**6,
        latency=True,
        input_shapes={"batch_size": job.batch_size, "sequence_length": length, "num_choices": 1},
        generate_kwargs={"max_new_tokens": new_tokens, "min_new_tokens": new_tokens},
    )
