"""Decoding with a cache: by the reference, and by the library with a cache of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llmb.reference.cache import KeyValueCache


def decoded(
    model: nn.Module, cache: KeyValueCache, prompt: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return logits ``[B, count, vocab]`` and the likeliest tokens ``[B, count]`` they give."""
    logits, ids, at = [], prompt, 0
    chosen = []
    with torch.inference_mode():
        for _ in range(count):
            positions = torch.arange(at, at + ids.shape[1])
            at += ids.shape[1]
            logits.append(model(ids, cache=cache, positions=positions))
            ids = logits[-1].argmax(dim=-1, keepdim=True)
            chosen.append(ids)
    return torch.stack(logits, dim=1), torch.cat(chosen, dim=1)


def generated(library: nn.Module, prompt: Tensor, count: int) -> Tensor:
    """Return the tokens ``[B, count]`` of the library's own greedy generation."""
    ids = library.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return ids[:, prompt.shape[1] :]


def decoded_by_the_library(library: nn.Module, ids: Tensor, prompt_length: int) -> Tensor:
    """Return the logits after the prompt and after every token but the last, one at a time."""
    past, logits = None, []
    with torch.no_grad():
        for begin in range(ids.shape[1] - 1):
            if 0 < begin < prompt_length:
                continue
            end = prompt_length if begin == 0 else begin + 1
            shown = library(ids[:, begin:end], past_key_values=past, use_cache=True)
            past = shown.past_key_values
            logits.append(shown.logits[:, -1])
    return torch.stack(logits, dim=1)
