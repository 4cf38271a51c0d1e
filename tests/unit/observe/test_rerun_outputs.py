"""Outputs made again have the weights, tokens and places of the worker's, without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.config import FP32, Mode, RunConfig
from llmb.formats import class_of
from llmb.observe import probes, weights_file
from llmb.observe.outputs import Output, look
from llmb.observe.passes import Numerics, without_layers
from llmb.observe.rerun import RerunInputs
from llmb.observe.rerun_outputs import RerunOutputs
from llmb.observe.weights_file import WeightsFile
from llmb.records.audited import LIVE_WEIGHTS
from llmb.reference.data import make_batch, random_tokens
from llmb.reference.generate import OneToken, generate_loop, make_desk, multinomial
from llmb.reference.lengths import draw_lengths
from llmb.reference.models import build, model_of, replace_parameter
from llmb.reference.train_loop import Step
from tests.unit.builders_audit import SMALL
from tests.unit.builders_runtime import run_config

SEED, STEP_SEED = 17, 18
TOKENS = {"live": 101, "step": 202}
SIZE, PROMPT, NEW = 4, 3, 5
PLAIN = Numerics(torch.float32, "cpu")
FORWARD = run_config(mode=Mode.FORWARD, batch_size=SIZE, precision=FP32)
GENERATE = FORWARD.model_copy(
    update={"mode": Mode.GENERATE, "prompt_length": PROMPT, "new_tokens": NEW}
)


def again(folder: Path, config: RunConfig, drawn: dict[str, Tensor] | None = None) -> RerunOutputs:
    model = build(SMALL, 1, torch.float32)
    path = folder / LIVE_WEIGHTS
    digest = weights_file.write(path, [(n, p.detach()) for n, p in model.named_parameters()])
    file = WeightsFile(path, digest)
    inputs = RerunInputs(config, SMALL, SEED, TOKENS, folder, folder, {LIVE_WEIGHTS: digest})
    return RerunOutputs(inputs, STEP_SEED, file, drawn or {})


def edited(name: str) -> nn.Module:
    """Return the model of a probe, made by hand."""
    source = dict(build(SMALL, 1, torch.float32).named_parameters())
    model = model_of(without_layers(SMALL) if name == probes.HEAD else SMALL)
    edits = probes.edits(name, SMALL, "float32")
    for parameter, _ in list(model.named_parameters()):
        value = source[parameter].detach()
        value = edits[parameter](value) if parameter in edits else value
        replace_parameter(model, parameter, value)
    return model


def compute(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids)


def assert_same(found: dict[str, Tensor], name: str, expected: Tensor) -> None:
    assert list(found) == [f"{name}/logits"]
    assert torch.allclose(found[f"{name}/logits"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "seed"), [("live", SEED), ("step", STEP_SEED)])
def test_a_call_is_made_again_from_its_tokens_and_looked_at_where_the_worker_was(
    tmp_path: Path, name: str, seed: int
) -> None:
    found = again(tmp_path, FORWARD).logits(name, PLAIN)
    ids = random_tokens(TOKENS[name], SIZE, SMALL.sequence_length, SMALL.vocab_size)
    right = compute(build(SMALL, 1, torch.float32), ids)
    assert_same(found, name, look(Output(right), seed, name)["logits"])


@pytest.mark.parametrize("name", probes.PROBES)
def test_a_probe_is_made_again_with_its_edits_and_its_own_tokens(tmp_path: Path, name: str) -> None:
    found = again(tmp_path, FORWARD).logits(name, PLAIN)
    seed = probes.token_seed(SEED, name)
    ids = random_tokens(seed, SIZE, SMALL.sequence_length, SMALL.vocab_size)
    right = compute(edited(name), ids)
    assert_same(found, name, look(Output(right), SEED, name)["logits"])


def test_a_call_of_dynamic_shapes_is_made_again_with_its_padding(tmp_path: Path) -> None:
    config = FORWARD.model_copy(update={"dynamic": True})
    found = again(tmp_path, config).logits("live", PLAIN)
    lengths = draw_lengths(TOKENS["live"], SIZE, SMALL.sequence_length)
    ids = make_batch(TOKENS["live"], SIZE, SMALL, lengths=lengths).ids
    right = compute(build(SMALL, 1, torch.float32), ids)
    assert_same(found, "live", look(Output(right), SEED, "live")["logits"])


def generated(seed: int, model: nn.Module) -> Output:
    """Return what a worker generates with its cache, one token after another."""
    taken: list[Any] = []

    def pause(step: Step, tokens: Tensor, logits: Tensor) -> bool:
        taken.append(Output(logits.transpose(0, 1).clone(), tokens))
        return True

    desk = make_desk(SMALL, SIZE, PROMPT, NEW, torch.float32)
    list(
        generate_loop(
            *(OneToken(model, multinomial), desk, [Step(0, seed, fence=False)]),
            lambda seed: random_tokens(seed, SIZE, PROMPT, SMALL.vocab_size),
            pause,
        )
    )
    (output,) = taken
    return output


def test_a_generated_sequence_passed_through_at_once_gives_the_logits_it_was_drawn_from(
    tmp_path: Path,
) -> None:
    output = generated(TOKENS["live"], build(SMALL, 1, torch.float32).eval())
    seen = look(output, SEED, "live")
    found = again(tmp_path, GENERATE, {"live": seen["tokens"].float()})
    assert_same(found.logits("live", PLAIN), "live", seen["logits"])


def test_a_cache_that_forgets_shows(tmp_path: Path) -> None:
    model = build(SMALL, 1, torch.float32).eval()
    whole = model.forward

    def forgetful(ids: Tensor, cache: Any = None, positions: Any = None) -> Tensor:
        found = whole(ids, cache=cache, positions=positions)
        cache.clear()
        return found

    model.forward = forgetful
    seen = look(generated(TOKENS["live"], model), SEED, "live")
    found = again(tmp_path, GENERATE, {"live": seen["tokens"].float()})
    right = found.logits("live", PLAIN)["live/logits"]
    assert float((right - seen["logits"]).norm() / right.norm()) > 0.05


def test_narrower_formats_and_types_can_be_asked_for(tmp_path: Path) -> None:
    outputs = again(tmp_path, FORWARD)
    right = outputs.logits("live", Numerics(torch.float64, "cpu"))["live/logits"]
    fp8 = class_of("FP8", None).format
    errors = []
    for dtype, name in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, fp8)):
        found = outputs.logits("live", Numerics(dtype, "cpu", name))["live/logits"]
        assert found.dtype is torch.float32
        errors.append(float((found - right).norm() / right.norm()))
    assert errors[0] < 2**-18
    assert errors[0] < errors[1] < errors[2]
