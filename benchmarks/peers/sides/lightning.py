"""litgpt: the command ``litgpt pretrain``, and its model alone in a plain loop.

The command compiles its model with inductor, clips gradients to norm 1, logs every step, and takes
the fused AdamW kernel on CUDA only; nothing of that can be switched off. So the plain loop stands
beside it: its GPT, its loss in chunks, the optimizer that the other sides have.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from gate import Gate
from job import Job
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import LlamaShape


def _sizes(job: Job) -> dict[str, object]:
    shape = job.shape
    assert isinstance(shape, LlamaShape)
    return {
        "name": job.workload,
        "block_size": shape.sequence_length,
        "vocab_size": shape.vocab_size,
        "padded_vocab_size": shape.vocab_size,
        "n_layer": shape.num_hidden_layers,
        "n_head": shape.num_attention_heads,
        "n_query_groups": shape.num_key_value_heads,
        "n_embd": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "rotary_percentage": 1.0,
        "rope_base": int(shape.rope_theta),
        "parallel_residual": False,
        "bias": False,
        "norm_class_name": "RMSNorm",
        "norm_eps": shape.rms_norm_eps,
        "mlp_class_name": "LLaMAMLP",
    }


def _introduce(gate: Gate, job: Job, note: str) -> None:
    with torch.device("meta"):
        model = GPT(Config(**_sizes(job)))
    gate.about.parameters = sum(p.numel() for p in model.parameters())
    gate.about.versions = {"litgpt": version("litgpt"), "torch": torch.__version__}
    gate.about.note = note


def command(job: Job, gate: Gate) -> None:
    """Run ``litgpt pretrain`` on random tokens, or measure its forward pass or its generation."""
    if job.mode != "train":
        _inference(job, gate)
    from litgpt.__main__ import main

    _introduce(gate, job, "`litgpt pretrain`: inductor, gradients clipped, AdamW not fused")
    constants = OFFICIAL_OPTIMIZER
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "model_name": "pythia-14m",  # demanded, and overruled by the next
            "model_config": _sizes(job),
            "precision": "bf16-true",
            "data": {
                "class_path": "sides.random_data.RandomTokens",
                "init_args": {"vocab_size": job.shape.vocab_size},
            },
            "train": {
                "micro_batch_size": job.batch_size,
                "global_batch_size": job.batch_size,
                "max_tokens": 10**12,
                "max_norm": 1.0,
                "lr_warmup_steps": 1,
                "save_interval": 10**9,
            },
            "eval": {"interval": 10**9},
            "optimizer": {
                "class_path": "torch.optim.AdamW",
                "init_args": {
                    "lr": constants.lr,
                    "betas": list(constants.betas),
                    "eps": constants.eps,
                    "weight_decay": constants.weight_decay,
                },
            },
            "devices": 1,
            "logger_name": "csv",
            "out_dir": str(Path(folder, "out")),
        }
        file = Path(folder, "settings.yaml")
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        sys.argv = ["litgpt", "pretrain", "--config", str(file)]
        main()


def loop(job: Job, gate: Gate) -> None:
    """Train its model in a plain loop, eager."""
    _introduce(gate, job, "its GPT and loss in a plain loop: eager, fused AdamW")
    model = _model(job)
    constants = OFFICIAL_OPTIMIZER
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=constants.lr,
        betas=constants.betas,
        eps=constants.eps,
        weight_decay=constants.weight_decay,
        fused=True,
    )
    size = (job.batch_size, job.shape.sequence_length + 1)
    while True:
        data = torch.randint(job.shape.vocab_size, size)
        logits = model(data[:, :-1].contiguous())
        chunked_cross_entropy(logits, data[:, 1:].contiguous()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _model(job: Job) -> GPT:
    # As Fabric's bf16-true does; the rotary tables are made in that format, too.
    torch.set_default_dtype(torch.bfloat16)
    model = GPT(Config(**_sizes(job)))
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16)


@torch.inference_mode()
def _inference(job: Job, gate: Gate) -> None:
    model = _model(job).eval()
    if job.mode == "forward":
        _introduce(gate, job, "eager")
        for _ in itertools.count():
            model(torch.randint(job.shape.vocab_size, (job.batch_size, job.shape.sequence_length)))
            gate.passed()
    from litgpt.generate.base import generate

    _introduce(gate, job, "litgpt.generate.base.generate, greedy, static cache")
    length = job.prompt + job.new_tokens
    model.max_seq_length = length
    model.set_kv_cache(batch_size=job.batch_size, dtype=torch.bfloat16)
    for _ in itertools.count():
        prompt = torch.randint(job.shape.vocab_size, (job.prompt,))
        made = generate(model, prompt, length, temperature=0.0, top_p=0.0, include_prompt=False)
        assert len(made) == job.new_tokens
        gate.passed()
