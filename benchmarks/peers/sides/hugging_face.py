"""Hugging Face transformers: its Llama and its GPT-2 in a plain loop with torch's fused AdamW."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import transformers
from gate import Gate
from job import Job

from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import LlamaShape


def config_of(job: Job) -> Any:
    """Return the transformers configuration of the job's function: the same as llmb's."""
    shape = job.shape
    if isinstance(shape, LlamaShape):
        return transformers.LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_hidden_layers,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            rms_norm_eps=shape.rms_norm_eps,
            rope_theta=shape.rope_theta,
            initializer_range=shape.initializer_range,
            pad_token_id=shape.padding_idx,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    return transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_embd=shape.hidden_size,
        n_inner=shape.intermediate_size,
        n_layer=shape.num_hidden_layers,
        n_head=shape.num_attention_heads,
        n_positions=shape.max_position_embeddings,
        layer_norm_epsilon=shape.layer_norm_epsilon,
        activation_function="gelu",  # the exact one, as llm-train-bench has it
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=None,
        attn_implementation="sdpa",
    )


def model_of(job: Job) -> Any:
    """Return the model with weights in BF16 and rotary tables as transformers keeps them."""
    config = config_of(job)
    family = (
        transformers.LlamaForCausalLM if job.family == "llama" else transformers.GPT2LMHeadModel
    )
    # `from_config` makes the weights in the format, and leaves the angles in float32.
    return family._from_config(config, dtype=torch.bfloat16)


def plain(job: Job, gate: Gate) -> None:
    """Measure the loop a user writes; generation with a static cache."""
    _measure(job, gate, "static")


def dynamic_cache(job: Job, gate: Gate) -> None:
    """Measure generation with the cache that is transformers' default."""
    _measure(job, gate, None)


def _measure(job: Job, gate: Gate, cache: str | None) -> None:
    torch.manual_seed(0)
    model = model_of(job)
    gate.about.parameters = sum(p.numel() for p in model.parameters())
    gate.about.versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    if job.mode == "train":
        _train(job, gate, model)
    elif job.mode == "forward":
        _forward(job, gate, model)
    else:
        _generate(job, gate, model, cache)


def tokens(job: Job) -> torch.Tensor:
    """Return fresh random tokens ``[B, T]``."""
    return torch.randint(job.shape.vocab_size, (job.batch_size, job.shape.sequence_length))


def _train(job: Job, gate: Gate, model: Any) -> None:
    constants = OFFICIAL_OPTIMIZER
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=constants.lr,
        betas=constants.betas,
        eps=constants.eps,
        weight_decay=constants.weight_decay,
        fused=True,
    )
    gate.about.note = "eager, sdpa, fused AdamW"
    model.train()
    model.config.use_cache = False
    while True:
        ids = tokens(job)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.inference_mode()
def _forward(job: Job, gate: Gate, model: Any) -> None:
    gate.about.note = "eager, sdpa, no cache"
    model.eval()
    while True:
        model(input_ids=tokens(job), use_cache=False)
        gate.passed()


@torch.inference_mode()
def _generate(job: Job, gate: Gate, model: Any, cache: str | None) -> None:
    gate.about.note = f"greedy, {cache or 'dynamic'} cache"
    model.eval()
    options = {"cache_implementation": cache} if cache else {}
    for _ in itertools.count():
        prompt = tokens(job)[:, : job.prompt]
        made = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=job.new_tokens,
            max_new_tokens=job.new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        assert made.shape[1] == job.prompt + job.new_tokens
        gate.passed()
