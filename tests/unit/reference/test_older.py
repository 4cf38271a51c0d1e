"""An older reference that is said to compute the same as this one does, number by number.

`older/` holds the files of such references as they were published; a family whose code changed
counts as the same only while these tests run both and find every bit equal.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from llmb import reference
from llmb.families import SHAPES
from llmb.records import references
from llmb.reference import pins
from llmb.reference.data import make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, train_loop
from tests import versions

OLDER = Path(__file__).parent / "older"
FOLDERS = {path.name.rpartition("_")[2]: path for path in sorted(OLDER.glob("v*"))}
STEPS = [Step(index=i, seed=100 + i, fence=i == 3) for i in range(4)]
DEPTHS = (
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "sequence_length",
    "initializer_range",
)
#: What a training run leaves: each parameter at the start and the end, tokens, losses, gradients.
Trace = dict[str, Tensor]


def confirmed() -> list[tuple[str, str]]:
    """Return digest and family of references that count as this one though their code differs."""
    table, ours = references.table(), pins.reference_digest(pins.pinned_digests())
    return [
        (row.digest[:12], family)
        for row in table.references
        for family in row.families
        if table.reasons(family, row.digest, ours)
    ]


def test_the_flagship_bundles_reference_is_among_those_that_are_held_here() -> None:
    assert ("17021ed72954", "llama") in confirmed()


@pytest.mark.parametrize(("digest", "family"), confirmed())
def test_the_files_that_are_held_here_are_the_published_ones(digest: str, family: str) -> None:
    rows = {row.digest[:12]: row for row in references.table().references}
    code = rows[digest].families[family]
    held = [name for name in FOLDERS if rows[name].families.get(family) == code]
    assert held, "no folder has this code of the family: copy the files"
    for name in held:
        row = rows[name]
        assert versions.of_folder(row.version, row.families, FOLDERS[name]) == row


@pytest.fixture
def older() -> Iterator[ModuleType]:
    """The reference of 0.1.0 that made the flagship bundles, as a package of its own."""
    names = ("shapes", "data", "llama", "optimizer", "train_loop")
    yield from package_of(FOLDERS["17021ed72954"], names)


@pytest.fixture
def before() -> Iterator[ModuleType]:
    """The reference of 0.2.0, as a package of its own."""
    names = ("shapes", "data", "models", "optimizer", "train_loop", "cache", "generate")
    yield from package_of(FOLDERS["4df239c6336a"], names)


def package_of(folder: Path, names: Sequence[str]) -> Iterator[ModuleType]:
    """Yield the files of ``folder`` as a package with the modules ``names``."""
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = package
    for name in names:
        importlib.import_module(f"{folder.name}.{name}")
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def traced(model: torch.nn.Module, steps: Iterator[Any]) -> Trace:
    """Return every number of a run, whose gradients are kept as the loop makes them."""
    found: Trace = {f"start {name}": p.detach().clone() for name, p in model.named_parameters()}
    losses = 0
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: found.update({f"gradient {losses} {name}": p.grad.clone()})
        )
    for done in steps:
        found[f"loss {losses}"] = done.loss
        losses += 1
    return found | {f"end {name}": p.detach().clone() for name, p in model.named_parameters()}


def of_older(package: ModuleType, shape: LlamaShape, dtype: torch.dtype) -> Trace:
    older_shape = package.shapes.LlamaShape(**asdict(shape))
    model = package.llama.build_llama(older_shape, seed=1, dtype=dtype)
    sizes = (3, shape.sequence_length, shape.vocab_size)

    def batch(seed: int) -> Tensor:
        ids: Tensor = package.data.random_tokens(seed, *sizes)
        return ids

    optimizer = package.optimizer.build_adamw(model.parameters())
    return traced(model, package.train_loop.train_loop(model, optimizer, STEPS, batch))


def of_this(shape: LlamaShape, dtype: torch.dtype) -> Trace:
    model = build(shape, seed=1, dtype=dtype)
    optimizer = build_optimizer(model.parameters())
    steps = train_loop(model, optimizer, STEPS, lambda seed: [make_batch(seed, 3, shape)])
    return traced(model, steps)


def unequal(one: Trace, other: Trace) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("heads", [2, 4], ids=["grouped", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_a_training_run_of_the_older_llama_has_every_bit_of_this_ones(
    older: ModuleType, shape: LlamaShape, dtype: torch.dtype, heads: int
) -> None:
    shape = replace(shape, num_key_value_heads=heads)
    theirs, ours = of_older(older, shape, dtype), of_this(shape, dtype)
    assert unequal(theirs, ours) == []
    assert {"gradient 3 lm_head.weight", "loss 3"} <= ours.keys()


def test_one_other_constant_of_the_older_optimizer_would_be_seen(
    older: ModuleType, shape: LlamaShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older.optimizer, "WEIGHT_DECAY", 0.02)
    found = unequal(of_older(older, shape, torch.float32), of_this(shape, torch.float32))
    assert any(name.startswith("end ") for name in found)


def test_the_fixed_workload_has_the_sizes_of_the_older_one(older: ModuleType) -> None:
    assert asdict(older.shapes.LlamaShape()) == asdict(LlamaShape())


#: Of each family that 0.2.0 had, a shape with every part of it.
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "padding_idx": 0},
    "llama-ungated": {"num_key_value_heads": 4, "padding_idx": None},
    "gpt2": {"max_position_embeddings": 16},
    "bert": {"max_position_embeddings": 16, "dropout": 0.1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("family", SMALL)
def test_a_training_run_of_0_2_0_has_every_bit_of_this_ones(
    before: ModuleType, shape: LlamaShape, family: str, dtype: torch.dtype
) -> None:
    common = {name: getattr(shape, name) for name in ("vocab_size", "hidden_size", *DEPTHS)}
    theirs = before.shapes.FAMILIES[family](**common, **SMALL[family])
    ours = SHAPES[family](**common, **SMALL[family])
    assert asdict(theirs) == asdict(ours)
    traces = [
        trained(package, made, dtype) for package, made in ((before, theirs), (reference, ours))
    ]
    assert unequal(*traces) == []
    assert not traces[0]["loss 3"].isnan()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_0_2_0_makes_of_a_cache_has_every_bit_of_this_ones(
    before: ModuleType, shape: LlamaShape, family: str
) -> None:
    found = []
    for package, kinds in ((before, before.shapes.FAMILIES), (reference, SHAPES)):
        common = {name: getattr(shape, name) for name in ("vocab_size", "hidden_size", *DEPTHS)}
        small = kinds[family](**common, **SMALL[family])
        model = package.models.build(small, 1, torch.float32)
        cache = package.cache.empty_cache(small, 2, 16, torch.float32)
        ids = package.data.random_tokens(3, 2, 7, small.vocab_size)
        found.append(model(ids, cache=cache, positions=torch.arange(7)))
    assert torch.equal(*found)


def trained(package: Any, shape: Any, dtype: torch.dtype) -> Trace:
    torch.manual_seed(3)  # of dropout
    model = package.models.build(shape, seed=1, dtype=dtype)
    optimizer = package.optimizer.build_optimizer(model.parameters())
    steps = [package.train_loop.Step(one.index, one.seed, fence=one.fence) for one in STEPS]
    batches = lambda seed: [package.data.make_batch(seed, 3, shape)]  # noqa: E731
    return traced(model, package.train_loop.train_loop(model, optimizer, steps, batches))
