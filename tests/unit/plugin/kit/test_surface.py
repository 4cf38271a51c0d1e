"""The options that vendors share, and what follows from them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llmb.config import Precision, Refused, RunConfig
from llmb.errors import UnavailableError
from llmb.plugin.kit import attention, compiling, formats, surface
from llmb.plugin.options import resolve
from tests.unit.builders_runtime import run_config


def config(**given: str) -> RunConfig:
    precision = {"precision": formats.FP8} if given.pop("precision", None) == "FP8" else {}
    options = resolve("any", surface.options(), given)
    return run_config(plugin_options=options, **precision)


def names(found: list[Precision | Refused]) -> list[str]:
    return [("no " if isinstance(p, Refused) else "") + p.name for p in found]


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_for_compiling", lambda: None)
    monkeypatch.setattr(formats, "version", lambda package: "1.0")


@pytest.mark.usefixtures("able")
def test_with_a_compiler_the_default_is_to_compile() -> None:
    assert config().plugin_options["compile"] == "default"
    assert surface.warmup_steps(config()) == compiling.WARMUP_STEPS > 1


def test_without_a_compiler_the_default_is_eager_and_asking_for_more_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "missing_for_compiling", lambda: "a C compiler")
    assert config().plugin_options["compile"] == "none"
    assert surface.warmup_steps(config()) == 1
    with pytest.raises(UnavailableError, match="compile=default needs a C compiler; or use -O"):
        surface.post_process(nn.Linear(2, 2), config(compile="default"))


@pytest.mark.parametrize("mode", surface.COMPILE_CHOICES)
def test_graphs_are_replayed_in_the_two_modes_that_capture_them(mode: str) -> None:
    captures = mode in ("reduce-overhead", "max-autotune")
    assert surface.replays_graphs(config(compile=mode)) is captures


def test_every_compile_choice_but_none_is_a_mode_of_torch() -> None:
    import torch._inductor

    assert set(surface.COMPILE_CHOICES) - {"none"} <= set(torch._inductor.list_mode_options())


@pytest.mark.usefixtures("able")
def test_bf16_comes_first_where_the_hardware_has_it() -> None:
    found = surface.precisions(config(), bf16=True, tf32=None, fp8=None)
    assert names(found) == ["BF16", "FP16", "TF32", "FP32", "FP8"]
    assert all(p.native for p in found if isinstance(p, Precision))


@pytest.mark.usefixtures("able")
def test_without_bf16_in_hardware_fp16_comes_first_and_bf16_is_called_slow() -> None:
    first, second = surface.precisions(config(), bf16=False, tf32=None, fp8=None)[:2]
    assert (first.name, second.name, second.native) == ("FP16", "BF16", False)


@pytest.mark.usefixtures("able")
def test_what_the_hardware_lacks_is_refused_with_the_vendors_reason() -> None:
    found = surface.precisions(config(), bf16=True, tf32="too old", fp8="older")
    assert names(found) == ["BF16", "FP16", "no TF32", "FP32", "no FP8"]
    assert [p.reason for p in found if isinstance(p, Refused)] == ["too old", "older"]


@pytest.mark.usefixtures("able")
def test_transformer_engine_with_compile_is_refused_and_without_is_offered() -> None:
    engine = {"fp8": "transformer-engine"}
    (refused,) = (
        p
        for p in surface.precisions(config(**engine), bf16=True, tf32=None, fp8=None)
        if isinstance(p, Refused)
    )
    assert "compile=none" in refused.reason
    eager = config(**engine, compile="none")
    assert "FP8" in names(surface.precisions(eager, bf16=True, tf32=None, fp8=None))


@pytest.mark.usefixtures("able")
def test_post_processing_converts_first_and_compiles_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = []
    monkeypatch.setattr(formats, "to_fp8", lambda m, recipe: done.append(recipe) or m)
    monkeypatch.setattr(compiling, "compile_in_place", lambda m, mode: done.append(mode) or m)
    model = nn.Linear(2, 2)
    fp8 = config(precision="FP8", fp8="rowwise", compile="max-autotune")
    assert surface.post_process(model, fp8) is model
    assert done == ["rowwise", "max-autotune"]
    done.clear()
    surface.post_process(model, config(compile="none"))
    assert done == []


def test_the_environment_settles_products_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(attention, "choose", chosen.append)
    monkeypatch.setattr(formats, "set_float32_products", lambda p: chosen.append(p.name))
    surface.set_environment(config(attention="math", compile="none"))
    assert chosen == ["BF16", "math"]
    assert torch.backends.cuda.flash_sdp_enabled()
