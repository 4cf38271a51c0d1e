"""A checkpoint gives the model its values, or one line that says why it cannot."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import llmb
from llmb import workloads
from llmb.config import WeightsSource
from llmb.errors import RunFailedError, UsageError
from llmb.inputs.checkpoint import open_checkpoint, shape_of
from llmb.inputs.start import values_of
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape, UngatedLlamaShape
from tests.unit.builders_runtime import run_config

LLAMA = LlamaShape(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    sequence_length=64,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    padding_idx=None,
)
GPT2 = Gpt2Shape(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    sequence_length=64,
    max_position_embeddings=64,
)
LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT2_CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 97,
    "n_embd": 48,
    "n_inner": None,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu",
}
FAMILIES: dict[str, tuple[Shape, dict[str, Any]]] = {
    "llama": (LLAMA, LLAMA_CONFIG),
    "gpt2": (GPT2, GPT2_CONFIG),
}
both = pytest.mark.parametrize("family", FAMILIES)
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def as_stored(shape: Shape, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return weights as the library stores them."""
    values = build(shape, seed=5, dtype=dtype).state_dict()
    gpt2 = isinstance(shape, Gpt2Shape)
    return {
        name: value.T.contiguous() if gpt2 and name.endswith(TURNED) else value
        for name, value in values.items()
    }


def write(folder: Path, config: dict[str, Any], *shards: dict[str, Tensor]) -> Path:
    """Write a checkpoint of one file, or of several and an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors")
        return folder
    where = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file)
        where |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def made(folder: Path, family: str, **changes: object) -> Path:
    shape, config = FAMILIES[family]
    return write(folder, {**config, **changes}, as_stored(shape))


def same(folder: Path, shape: Shape, dtype: torch.dtype = torch.float32) -> bool:
    """Tell whether the model of the checkpoint is the one that was written."""
    checkpoint = open_checkpoint(folder, shape)
    loaded = build(shape, seed=1, dtype=torch.float32, values=checkpoint.value)
    expected = build(shape, seed=5, dtype=dtype)
    assert all(parameter.is_contiguous() for parameter in loaded.parameters())
    return all(
        torch.equal(a, b.float())
        for a, b in zip(loaded.parameters(), expected.parameters(), strict=True)
    )


def refusal(folder: Path, shape: Shape) -> str:
    with pytest.raises(UsageError) as caught:
        open_checkpoint(folder, shape)
    message = str(caught.value)
    assert "\n" not in message
    return message


@both
def test_the_model_gets_the_values_of_one_file(tmp_path: Path, family: str) -> None:
    assert same(made(tmp_path, family), FAMILIES[family][0])


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_are_in_the_dtype_they_are_stored_in(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    shape, config = FAMILIES[family]
    folder = write(tmp_path, config, as_stored(shape, dtype))
    name = "model.norm.weight" if family == "llama" else "transformer.ln_f.weight"
    assert open_checkpoint(folder, shape).value(name).dtype == dtype
    assert same(folder, shape, dtype)


@both
def test_the_model_gets_the_values_of_several_files(tmp_path: Path, family: str) -> None:
    shape, config = FAMILIES[family]
    items = sorted(as_stored(shape).items())
    assert same(write(tmp_path, config, dict(items[:5]), dict(items[5:9]), dict(items[9:])), shape)


def test_gpt2_is_read_without_its_prefix_and_with_what_old_versions_stored(tmp_path: Path) -> None:
    bare = {name.removeprefix("transformer."): v for name, v in as_stored(GPT2).items()}
    mask = torch.ones(1, 1, 64, 64)
    old = {
        "h.0.attn.bias": mask,
        "h.1.attn.bias": mask.clone(),
        "h.1.attn.masked_bias": torch.tensor(-1e4),
    }
    assert same(write(tmp_path / "bare", GPT2_CONFIG, bare), GPT2)
    assert same(write(tmp_path / "old", GPT2_CONFIG, bare | old), GPT2)
    head = {"lm_head.weight": as_stored(GPT2)["transformer.wte.weight"].clone()}
    assert same(write(tmp_path / "head", GPT2_CONFIG, as_stored(GPT2) | head), GPT2)


def test_tables_of_rotary_positions_are_passed_over(tmp_path: Path) -> None:
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    assert same(write(tmp_path, LLAMA_CONFIG, as_stored(LLAMA) | tables), LLAMA)


def test_a_file_that_changes_later_changes_no_weight(tmp_path: Path) -> None:
    made(tmp_path, "llama")
    value = open_checkpoint(tmp_path, LLAMA).value("lm_head.weight")
    before = value.clone()
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(bytes(file.stat().st_size - 4096))
    assert torch.equal(value, before)


@both
def test_the_shape_is_that_of_the_configuration(tmp_path: Path, family: str) -> None:
    assert shape_of(made(tmp_path, family)) == FAMILIES[family][0]


def test_the_newer_form_of_the_rotary_base_is_read(tmp_path: Path) -> None:
    parameters = {"rope_theta": 20000.0, "rope_type": "default"}
    made(tmp_path, "llama", rope_parameters=parameters, rope_theta=1.0, pad_token_id=3)
    assert shape_of(tmp_path) == replace(LLAMA, rope_theta=20000.0, padding_idx=3)


def test_without_key_value_heads_there_are_as_many_as_query_heads(tmp_path: Path) -> None:
    made(tmp_path, "llama", num_key_value_heads=None)
    assert shape_of(tmp_path) == replace(LLAMA, num_key_value_heads=4)


def test_the_runs_own_lengths_and_padding_are_no_part_of_the_weights(tmp_path: Path) -> None:
    made(tmp_path, "llama")
    assert same(tmp_path, replace(LLAMA, sequence_length=16))
    open_checkpoint(tmp_path, replace(LLAMA, padding_idx=0, initializer_range=0.5))


def test_the_digest_is_that_of_configuration_and_weights_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    made(tmp_path, "llama")
    digest = open_checkpoint(tmp_path, LLAMA).digest
    listing = "".join(
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.json", "model.safetensors")
    )
    assert digest == hashlib.sha256(listing.encode()).hexdigest()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert open_checkpoint(tmp_path, LLAMA).digest == digest
    weights = as_stored(LLAMA)
    weights["lm_head.weight"][3, 3] += 1
    save_file(weights, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path, LLAMA).digest != digest


def test_a_checkpoint_is_opened_and_digested_without_torch(tmp_path: Path) -> None:
    made(tmp_path, "llama")
    code = (
        "import sys; from pathlib import Path; from llmb.inputs import checkpoint, prompt\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "opened = checkpoint.open_checkpoint(folder, checkpoint.shape_of(folder))\n"
        "print(opened.digest, len(opened.places), 'torch' in sys.modules)"
    )
    root = str(Path(llmb.__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    opened = open_checkpoint(tmp_path, LLAMA)
    assert done.stdout.split() == [opened.digest, str(len(opened.places)), "False"]


def test_gelu_by_tanh_is_read_and_said(tmp_path: Path) -> None:
    made(tmp_path, "gpt2", activation_function="gelu_new")
    (note,) = open_checkpoint(tmp_path, GPT2).notes
    assert "gelu_new" in note
    made(tmp_path, "gpt2")
    assert open_checkpoint(tmp_path, GPT2).notes == ()


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("vocab_size", 96, "vocab_size 96"),
        ("hidden_size", 96, "hidden_size 96"),
        ("intermediate_size", 81, "intermediate_size 81"),
        ("num_hidden_layers", 3, "num_hidden_layers 3"),
        ("num_key_value_heads", 4, "num_key_value_heads 4"),
        ("rope_theta", 10000, "rope_theta 10000"),
        ("rms_norm_eps", 1e-6, "rms_norm_eps 1e-06"),
        ("max_position_embeddings", 32, "at most 32"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("attention_bias", True, "attention_bias is True"),
        ("mlp_bias", True, "mlp_bias is True"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("head_dim", 16, "heads of 16"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "scaled (llama3)"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "scaled (linear)"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 500000.0}, "scaled (yarn)"),
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "part of each head"),
        ("rope_parameters", {"rope_theta": "large"}, "'large'"),
        ("quantization_config", {"bits": 4}, "quantised"),
        ("model_type", "mistral", "'mistral'"),
        ("model_type", None, "model_type"),
        ("num_hidden_layers", "two", "num_hidden_layers"),
        ("num_hidden_layers", 0, "num_hidden_layers"),
    ],
)
def test_another_llama_is_refused(tmp_path: Path, field: str, value: object, part: str) -> None:
    assert part in refusal(made(tmp_path, "llama", **{field: value}), LLAMA)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("n_positions", 32, "max_position_embeddings 32"),
        ("n_inner", 96, "intermediate_size 96"),
        ("n_head", 8, "num_attention_heads 8"),
        ("activation_function", "relu", "'relu'"),
        ("tie_word_embeddings", False, "tie_word_embeddings is False"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx is True"),
    ],
)
def test_another_gpt2_is_refused(tmp_path: Path, field: str, value: object, part: str) -> None:
    assert part in refusal(made(tmp_path, "gpt2", **{field: value}), GPT2)


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    assert "another family" in refusal(made(tmp_path, "llama"), GPT2)
    for shape in (BertShape(), UngatedLlamaShape(**vars(LLAMA))):
        assert "gpt2, llama and qwen3 only" in refusal(tmp_path, shape)


def changed(change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    weights = as_stored(LLAMA)
    change(weights)
    return weights


NORM, QUERY = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda w: w.pop(QUERY), f"lacks {QUERY}"),
        (lambda w: (w.pop(NORM), w.pop(QUERY)), "and 1 more"),
        (lambda w: w.update({NORM: torch.ones(47)}), f"{NORM} as F32 [47]"),
        (lambda w: w.update({NORM: torch.ones(48, dtype=torch.int8)}), f"{NORM} as I8"),
        (lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}), "q_proj.b"),
        (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.ones(4)}), "layers.2"),
    ],
)
def test_tensors_missing_too_many_or_of_another_size_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], part: str
) -> None:
    assert part in refusal(write(tmp_path, LLAMA_CONFIG, changed(change)), LLAMA)


def test_gpt2_matrices_that_are_already_turned_are_refused(tmp_path: Path) -> None:
    weights = build(GPT2, seed=5, dtype=torch.float32).state_dict()
    assert "c_attn.weight as F32 [144, 48]" in refusal(write(tmp_path, GPT2_CONFIG, weights), GPT2)


def test_a_folder_without_safetensors_is_refused_and_told_what_it_has(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path, LLAMA)
    assert "config.json" in refusal(tmp_path / "nowhere", LLAMA)
    assert "config.json" in refusal(Path("nul\0byte"), LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert "has no weights" in refusal(tmp_path, LLAMA)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin only" in refusal(tmp_path, LLAMA)


@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", bytes(64)],
)
def test_a_file_that_is_none_or_was_cut_is_refused(tmp_path: Path, content: bytes) -> None:
    made(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(content)
    assert "no safetensors file" in refusal(tmp_path, LLAMA)
    file.write_bytes(whole[:-100])
    assert "damaged" in refusal(tmp_path, LLAMA)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"model_type": 3}', b"\xff"])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    made(tmp_path, "llama")
    (tmp_path / "config.json").write_bytes(content)
    assert "config.json" in refusal(tmp_path, LLAMA)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    items = sorted(as_stored(LLAMA).items())
    write(tmp_path, LLAMA_CONFIG, dict(items[:5]), dict(items[5:]))
    index = tmp_path / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]

    def told(change: dict[str, str]) -> str:
        index.write_text(json.dumps({"weight_map": where | change}))
        return refusal(tmp_path, LLAMA)

    assert QUERY in told({QUERY: where["lm_head.weight"]})
    assert "no file beside it" in told({QUERY: "../model-00001-of-00002.safetensors"})
    assert "cannot be read" in told({QUERY: "model-00009.safetensors"})
    index.write_text("{}")
    assert "which file holds which tensor" in refusal(tmp_path, LLAMA)


def test_a_value_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(made(tmp_path, "llama"), LLAMA)
    with pytest.raises(UsageError, match="there is none"):
        checkpoint.value("model.norm.bias")
    with pytest.raises(UsageError, match=r"\[47\]: there is it as \[48\]"):
        checkpoint.value("model.norm.weight", torch.Size([47]))


@both
def test_a_run_takes_the_weights_it_was_begun_with_or_none(tmp_path: Path, family: str) -> None:
    shape = FAMILIES[family][0]
    folder = made(tmp_path, family)
    source = WeightsSource(path=str(folder), sha256=open_checkpoint(folder, shape).digest)
    workload = replace(workloads.WORKLOADS["llama-1.4b"], shape=shape)
    given = values_of(run_config(weights=source), workload)
    name = next(iter(open_checkpoint(folder, shape).places))
    assert given is not None
    assert torch.equal(given(name, None), open_checkpoint(folder, shape).value(name))
    other = source.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(RunFailedError, match="the files have changed since"):
        values_of(run_config(weights=other), workload)
