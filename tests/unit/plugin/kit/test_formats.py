"""TF32 switches, and FP8 by torchao for real (its products run on a CPU, slowly)."""

from __future__ import annotations

import copy
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from llmb.config import BF16, FP32, TF32
from llmb.errors import UnavailableError
from llmb.plugin.kit import formats
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape
from tests import needs

SHAPE = LlamaShape(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    sequence_length=16,
)

#: Their blocks go by other names than LLaMA's, and their linear layers have biases.
OTHERS = {
    "transformer.h.0.attn.c_attn": Gpt2Shape(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        sequence_length=16,
        max_position_embeddings=16,
    ),
    "bert.encoder.layer.1.output.dense": BertShape(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        sequence_length=16,
        max_position_embeddings=16,
    ),
}
by_block = pytest.mark.parametrize("block", OTHERS)


def model(**changes: int) -> nn.Module:
    shape = LlamaShape(**{**vars(SHAPE), **changes})
    return build(shape, 1, torch.bfloat16, "cpu")


@pytest.fixture
def float32_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("float32_precision")
@pytest.mark.parametrize(("precision", "setting"), [(TF32, "high"), (FP32, "highest")])
def test_only_tf32_lets_float32_products_be_narrower(precision: object, setting: str) -> None:
    torch.set_float32_matmul_precision("medium")
    formats.set_float32_products(precision)
    assert torch.get_float32_matmul_precision() == setting


def test_fp8_is_stored_in_bf16_and_counts_as_eight_bits() -> None:
    assert (formats.FP8.bits, formats.FP8.stored_dtype) == (8, "bfloat16")
    assert formats.FP8.bytes_per_value == BF16.bytes_per_value


@pytest.mark.parametrize("recipe", formats.TORCHAO_RECIPES)
def test_with_torchao_the_blocks_linear_layers_compute_in_fp8_and_train(recipe: str) -> None:
    needs.package("torchao")
    honest = model()
    processed = formats.to_fp8(copy.deepcopy(honest), recipe)
    kinds = {name: type(m).__name__ for name, m in processed.named_modules()}
    assert kinds["model.layers.0.self_attn.q_proj"] == "Float8Linear"
    assert kinds["model.layers.1.mlp.down_proj"] == "Float8Linear"
    assert kinds["lm_head"] == "Linear"
    before = {name: p.detach() for name, p in honest.named_parameters()}
    after = dict(processed.named_parameters())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())

    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(2))
    losses = {}
    for name, candidate in (("honest", honest), ("fp8", processed)):
        loss = candidate(ids, labels=ids)
        loss.backward()
        losses[name] = loss.item()
    assert losses["fp8"] == pytest.approx(losses["honest"], rel=0.05)
    down = "model.layers.1.mlp.down_proj.weight"
    exact, coarse = (dict(m.named_parameters())[down].grad for m in (honest, processed))
    error = (coarse - exact).norm() / exact.norm()
    assert 0.005 < error < 0.3, "8-bit products: neither exact nor noise"


@by_block
def test_the_blocks_of_other_families_are_found_and_their_heads_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    seen = recorded_conversion(monkeypatch)
    other = build(OTHERS[block], 1, torch.bfloat16, "cpu")
    formats.to_fp8(other, "tensorwise")
    linear = {n for n, m in other.named_modules() if isinstance(m, nn.Linear)}
    outside = {n for n in linear if n.startswith(("cls.", "bert.pooler."))}
    assert block in seen["names"]
    assert set(seen["names"]) == linear - outside


def test_a_layer_whose_sizes_are_no_multiples_of_sixteen_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = recorded_conversion(monkeypatch)
    formats.to_fp8(model(intermediate_size=40), "rowwise")
    assert seen["recipe"] == "rowwise"
    assert "model.layers.0.self_attn.o_proj" in seen["names"]
    assert not any("mlp" in name or "lm_head" in name for name in seen["names"])


def test_a_model_without_a_layer_that_fits_is_refused() -> None:
    with pytest.raises(UnavailableError, match="multiples of 16"):
        formats.to_fp8(model(hidden_size=8, intermediate_size=24), "tensorwise")


def recorded_conversion(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Put a recorder in the place of torchao's conversion."""
    seen: dict[str, object] = {}

    class Config:
        @staticmethod
        def from_recipe_name(name: str) -> str:
            seen["recipe"] = name
            return name

    def convert(module: nn.Module, *, config: object, module_filter_fn: object) -> nn.Module:
        seen["names"] = [n for n, m in module.named_modules() if module_filter_fn(m, n)]
        return module

    float8 = ModuleType("torchao.float8")
    float8.Float8LinearConfig = Config
    float8.convert_to_float8_training = convert
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)
    return seen


# Transformer Engine cannot even be imported without NVIDIA's libraries: its two names are replaced.


class EngineLinear(nn.Linear):
    def __init__(
        self, inputs: int, outputs: int, *, bias: bool, params_dtype: torch.dtype, device: object
    ) -> None:
        super().__init__(inputs, outputs, bias=bias, dtype=params_dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        assert ENGINE_STATE == ["on"], "a layer ran outside the FP8 context"
        return super().forward(x)


ENGINE_STATE: list[str] = []


def install_engine(monkeypatch: pytest.MonkeyPatch, context: str) -> None:
    """Put the two names in the place of Transformer Engine; ``context`` is the second's."""
    engine = ModuleType("transformer_engine.pytorch")
    engine.Linear = EngineLinear
    setattr(engine, context, engine_autocast)
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)


@contextmanager
def engine_autocast(*, enabled: bool) -> Iterator[None]:
    ENGINE_STATE.append("on" if enabled else "off")
    yield
    ENGINE_STATE.pop()


@pytest.mark.parametrize("name", ["autocast", "fp8_autocast"])
def test_transformer_engines_layers_take_over_the_weights_and_run_under_its_context(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install_engine(monkeypatch, name)
    honest = model()
    processed = formats.to_fp8(copy.deepcopy(honest), formats.TRANSFORMER_ENGINE)
    assert isinstance(processed.get_submodule("model.layers.0.mlp.up_proj"), EngineLinear)
    assert not isinstance(processed.get_submodule("lm_head"), EngineLinear)
    before = dict(honest.named_parameters())
    after = dict(processed.named_parameters())
    assert set(after) == set(before)
    assert all(torch.equal(after[n], p) for n, p in before.items())
    ids = torch.randint(64, (1, 16), generator=torch.Generator().manual_seed(3))
    assert torch.equal(processed(ids, labels=ids), honest(ids, labels=ids))
    assert ENGINE_STATE == []


@by_block
def test_transformer_engines_layers_take_over_biases_too(
    monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    install_engine(monkeypatch, "autocast")
    honest = build(OTHERS[block], 1, torch.bfloat16, "cpu")
    with torch.no_grad():
        for parameter in honest.parameters():
            parameter.add_(0.5)  # biases are 0 at first, as are those of a new layer
    before = {n: p.detach().clone() for n, p in honest.named_parameters()}
    processed = formats.to_fp8(honest, formats.TRANSFORMER_ENGINE)
    assert isinstance(processed.get_submodule(block), EngineLinear)
    after = dict(processed.named_parameters())
    assert set(after) == set(before)
    assert all(torch.equal(after[n], value) for n, value in before.items())


@pytest.mark.parametrize(
    ("recipe", "installed", "compiled", "words"),
    [
        ("tensorwise", set(), True, "needs the package torchao"),
        ("transformer-engine", {"torchao"}, False, "needs the package transformer-engine-torch"),
        ("transformer-engine", {"transformer-engine-torch"}, True, "add -O compile=none"),
    ],
)
def test_what_fp8_lacks_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, recipe: str, installed: set[str], compiled: bool, words: str
) -> None:
    only(monkeypatch, installed)
    reason = formats.missing_for_fp8(recipe, compiled=compiled)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("recipe", "package", "compiled"),
    [("rowwise", "torchao", True), ("transformer-engine", "transformer-engine-torch", False)],
)
def test_fp8_lacks_nothing_where_its_package_is_installed(
    monkeypatch: pytest.MonkeyPatch, recipe: str, package: str, compiled: bool
) -> None:
    only(monkeypatch, {package})
    assert formats.missing_for_fp8(recipe, compiled=compiled) is None


@pytest.mark.parametrize(
    ("file", "lacks"),
    [("transformer_engine_torch.cpython-312.so", False), ("transformer_engine/__init__.py", True)],
)
def test_transformer_engine_may_be_one_package_if_torchs_part_is_in_it(
    monkeypatch: pytest.MonkeyPatch, file: str, lacks: bool
) -> None:
    only(monkeypatch, set())
    monkeypatch.setattr(formats, "files", lambda name: [importlib.metadata.PackagePath(file)])
    reason = formats.missing_for_fp8(formats.TRANSFORMER_ENGINE, compiled=False)
    assert (reason is not None) == lacks


def test_what_torchao_replaces_is_declared_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torchao.float8._inductor_patch"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert formats.patches() == []
    patch = ModuleType(name)
    patch._PATCHED = True
    monkeypatch.setitem(sys.modules, name, patch)
    assert [declared.target.rpartition(".")[2] for declared in formats.patches()] == [
        "minimum",
        "maximum",
    ]


def only(monkeypatch: pytest.MonkeyPatch, installed: set[str]) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(formats, "version", version)
