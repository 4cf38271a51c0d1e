"""What the library saves is what llmb loads: the same function, whole or in several files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llmb.inputs.checkpoint import open_checkpoint, shape_of
from llmb.inputs.prompt import PromptTokenizer
from llmb.reference.data import random_tokens
from llmb.reference.generate import OneToken, generate_loop, make_desk
from llmb.reference.models import build
from llmb.reference.train_loop import Step
from tests import needs
from tests.parity.decoding import generated

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LLAMA = LlamaConfig(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    initializer_range=0.125,
    bos_token_id=1,
    eos_token_id=2,
)
GPT2 = GPT2Config(
    vocab_size=97,
    n_embd=64,
    n_layer=3,
    n_head=8,
    n_positions=64,
    activation_function="gelu",
    initializer_range=0.125,
    bos_token_id=1,
    eos_token_id=2,
)


def of_qwen3(*, tied: bool) -> PreTrainedModel:
    """Return a Qwen3 whose heads have a size of their own."""
    config = Qwen3Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.125,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LLAMA),
    "gpt2": lambda: GPT2LMHeadModel(GPT2),
    "gpt2_without_head": lambda: GPT2LMHeadModel(GPT2),
    "qwen3": lambda: of_qwen3(tied=False),
    "qwen3_tied": lambda: of_qwen3(tied=True),
}


@pytest.mark.parametrize("whole", [True, False], ids=["one_file", "several_files"])
@pytest.mark.parametrize("family", MODELS)
def test_a_saved_model_computes_the_same_logits_here(
    tmp_path: Path, family: str, whole: bool
) -> None:
    torch.manual_seed(1)
    theirs = MODELS[family]().eval()
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    saved = theirs.transformer if family == "gpt2_without_head" else theirs
    saved.save_pretrained(tmp_path, max_shard_size="5GB" if whole else "60KB")
    assert (len(list(tmp_path.glob("*.safetensors"))) == 1) is whole
    shape = shape_of(tmp_path)
    checkpoint = open_checkpoint(tmp_path, shape)
    ours = build(shape, seed=0, dtype=torch.float32, values=checkpoint.value)
    ids = random_tokens(3, 3, 32, 97)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_prompt_is_continued_by_the_text_that_the_library_continues_it_with(
    tmp_path: Path,
) -> None:
    torch.manual_seed(1)
    theirs = LlamaForCausalLM(LLAMA).eval()
    theirs.save_pretrained(tmp_path)
    words = {f"word{i}": i for i in range(97)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    shape = shape_of(tmp_path)
    text = PromptTokenizer(tmp_path, shape.vocab_size)
    ids = torch.tensor([text.encode("word5 word7 word96 word11")])
    assert ids.tolist() == [[5, 7, 96, 11]]
    weights = open_checkpoint(tmp_path, shape)
    model = build(shape, seed=0, dtype=torch.float32, values=weights.value)
    likeliest = OneToken(model, lambda logits: logits.argmax(dim=-1, keepdim=True))
    desk = make_desk(shape, 1, 4, 20, torch.float32)
    (done,) = generate_loop(likeliest, desk, [Step(0, 1, False)], lambda seed: ids)
    expected = generated(theirs, ids, 20)[0].tolist()
    assert text.decode(done.tokens[0].tolist()) == " ".join(f"word{i}" for i in expected)
