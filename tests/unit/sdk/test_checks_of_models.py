"""Checks of a post-processed model: names, values, writes and gradients by the plugin's own map."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.models import build
from llmb.sdk.checks import model, permitted
from llmb.sdk.report import SkipError
from llmb.sdk.subject import Change
from llmb.workloads import find
from tests.unit.builders_runtime import TINY
from tests.unit.sdk.stubs import fails, subject

SHAPE = find("llama-1.4b", TINY).shape
NORM, GATE = "model.norm.weight", "model.layers.0.mlp.gate_proj.weight"


class View:
    """A canonical parameter that is stored as it is; ``wrong`` is one way of not being one."""

    padding: tuple[str, ...] = ()

    def __init__(self, parameter: nn.Parameter, wrong: str = "") -> None:
        self.parameter, self.wrong = parameter, wrong
        self.kept = parameter.detach().clone()

    def read(self, kind: str) -> Tensor | None:
        if kind == self.wrong:
            return None
        if kind == "grad":
            return self.parameter.grad
        value = self.kept if self.wrong == "stale" else self.parameter.detach()
        return value + 1 if self.wrong == "other value" else value.T if self.wrong == "T" else value

    def write(self, value: Tensor) -> None:
        if self.wrong != "write":
            with torch.no_grad():
                self.parameter.copy_(value)


def processed(
    dtype: torch.dtype = torch.float32, wrong: str = "", *, mapped: bool = True, **parts: Any
) -> Any:
    """Return a subject whose model is the pristine one, with the view of one weight wrong."""
    made = build(SHAPE, 7, dtype)
    pristine = {name: p.detach().clone() for name, p in made.named_parameters()}

    def views(of: nn.Module) -> dict[str, View] | None:
        found = {name: View(p, wrong if name == GATE else "") for name, p in of.named_parameters()}
        if wrong == "dropped":
            del found[GATE]
        if wrong == "renamed":
            found["model.gate"] = found.pop(GATE)
        return found if mapped else None

    run_phases = {
        "processed": SimpleNamespace(model=made, pristine=pristine, shape=SHAPE),
        "batch": lambda seed: torch.full((2, SHAPE.sequence_length), 3 + seed),
        **parts,
    }
    return subject(parameter_map=views, **run_phases)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_was_left_alone_passes(dtype: torch.dtype, mapped: bool) -> None:
    looked_at = processed(dtype, mapped=mapped)
    assert model.post_processing(looked_at).startswith("loss 10.")
    assert model.parameter_names(looked_at) == "21 parameters"
    assert model.parameter_values(looked_at) == "21 parameters"
    assert model.gradients(looked_at) == "21 gradients"
    if mapped:
        assert model.parameter_writes(looked_at) == "21 views"
    else:
        with pytest.raises(SkipError, match="no parameter map"):
            model.parameter_writes(looked_at)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("renamed", ("22 parameters", "knows", "model.gate")),
        ("value", (GATE, "reads no value")),
        ("T", (GATE, "canonically")),
    ],
)
def test_a_parameter_that_is_not_found_is_named(wrong: str, words: tuple[str, ...]) -> None:
    fails(model.parameter_names, processed(wrong=wrong), *words)


def test_a_view_may_be_left_out_where_the_model_has_the_name() -> None:
    assert model.parameter_names(processed(wrong="dropped")) == "21 parameters"
    looked_at = processed(wrong="dropped")
    looked_at.processed.pristine["model.gone.weight"] = torch.zeros(2)
    fails(model.parameter_names, looked_at, "leaves out model.gone.weight")


def test_a_loss_that_counts_positions_without_a_target_is_named() -> None:
    looked_at = processed()
    whole = looked_at.processed.model

    class OfAllPositions(nn.Module):
        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            share: torch.Tensor = (labels[:, 1:] != -100).float().mean()
            loss: torch.Tensor = whole(ids, labels=labels)
            return loss * share

    looked_at.processed.model = OfAllPositions()
    fails(model.post_processing, looked_at, "-100", "--dynamic")


def test_a_renamed_parameter_is_named_with_what_helps() -> None:
    looked_at = processed(mapped=False)
    looked_at.processed.model = nn.ModuleDict({"_orig_mod": looked_at.processed.model})
    fails(model.parameter_names, looked_at, "llmb_parameter_map", "model.compile()")


def test_a_changed_value_is_named() -> None:
    fails(model.parameter_values, processed(wrong="other value"), GATE, "not")
    looked_at = processed(mapped=False)
    with torch.no_grad():
        looked_at.processed.model.model.norm.weight[0] += 1e-6
    fails(model.parameter_values, looked_at, NORM)


def test_a_narrower_type_is_a_changed_value_and_a_wider_one_is_not() -> None:
    looked_at = processed(torch.bfloat16, mapped=False)
    looked_at.processed.model.float()
    assert model.parameter_values(looked_at) == "21 parameters"
    looked_at = processed(torch.float32, mapped=False)
    looked_at.processed.model.bfloat16()
    fails(model.parameter_values, looked_at, "weights may be moved")


@pytest.mark.parametrize("wrong", ["write", "stale", "other value"])
def test_a_write_that_is_not_read_back_is_named(wrong: str) -> None:
    fails(model.parameter_writes, processed(wrong=wrong), GATE, "does not read back")


def test_writing_leaves_every_value_as_it_was() -> None:
    looked_at = processed()
    model.parameter_writes(looked_at)
    for name, parameter in looked_at.processed.model.named_parameters():
        assert torch.equal(parameter, looked_at.processed.pristine[name])


def test_a_parameter_without_a_gradient_is_named() -> None:
    fails(model.gradients, processed(wrong="grad"), GATE, "no gradient")
    looked_at = processed(mapped=False)
    looked_at.processed.model.model.norm.weight.requires_grad_(False)
    fails(model.gradients, looked_at, NORM)


def test_a_gradient_that_is_not_finite_is_named() -> None:
    looked_at = processed(mapped=False)
    looked_at.processed.model.model.norm.weight.register_hook(lambda grad: grad / 0)
    fails(model.gradients, looked_at, NORM, "not finite")


def test_gradients_are_gone_afterwards() -> None:
    looked_at = processed()
    model.gradients(looked_at)
    assert all(p.grad is None for p in looked_at.processed.model.parameters())


@pytest.mark.parametrize(
    ("forward", "word"),
    [
        (lambda ids, labels: torch.zeros(2, 3), "scalar"),
        (lambda ids, labels: 10.4, "scalar"),
        (lambda ids, labels: torch.tensor(float("nan")), "nan"),
        (lambda ids, labels: torch.tensor(5.2), "5.2"),
    ],
)
def test_a_model_that_returns_no_plausible_loss_is_refused(forward: Any, word: str) -> None:
    looked_at = processed()
    looked_at.processed.model.forward = forward
    fails(model.post_processing, looked_at, word)


# -- permitted points -------------------------------------------------------------------------


def watched(**changes: list[Change]) -> Any:
    """Return what a watch has seen: station -> changes, of settings or of variables."""
    settings = {k.removeprefix("s_"): v for k, v in changes.items() if k.startswith("s_")}
    variables = {k.removeprefix("v_"): v for k, v in changes.items() if k.startswith("v_")}
    run_phases = ("importing", "answering", "post-processing", "training")
    empty: dict[str, list[Change]] = {station: [] for station in run_phases}
    return SimpleNamespace(settings={**empty, **settings}, variables={**empty, **variables})


SETTING = [Change("torch.float32_matmul_precision", "highest", "high")]
VARIABLE = [Change("OMP_NUM_THREADS", "1", "4")]
OTHER_VARIABLE = [Change("ACME_LOG_LEVEL", None, "3")]


def test_importing_may_change_no_setting_and_no_variable_that_steers_torch() -> None:
    fails(permitted.importing, subject(watch=watched(s_importing=SETTING)), "'high'")
    fails(permitted.importing, subject(watch=watched(v_importing=VARIABLE)), "OMP_NUM_THREADS")
    permitted.importing(subject(watch=watched(v_importing=OTHER_VARIABLE)))


@pytest.mark.parametrize("change", [{"s_answering": SETTING}, {"v_answering": OTHER_VARIABLE}])
def test_answering_may_change_nothing(change: dict[str, list[Change]]) -> None:
    fails(permitted.answering, subject(watch=watched(**change)), "llmb_set_environment")


@pytest.mark.parametrize("change", [{"s_training": SETTING}, {"v_training": OTHER_VARIABLE}])
def test_training_may_change_nothing(change: dict[str, list[Change]]) -> None:
    fails(permitted.training, subject(watch=watched(**change), trained=None), "trained")


def test_post_processing_may_change_settings_but_no_variable_and_no_token() -> None:
    tokens = torch.full((2, SHAPE.sequence_length), 3)

    def looked_at(**changes: list[Change]) -> Any:
        made = processed(watch=watched(**changes))
        made.tokens = tokens
        return made

    said = permitted.post_processing(looked_at(**{"s_post-processing": SETTING}))
    assert "float32_matmul_precision" in said
    fails(permitted.post_processing, looked_at(**{"v_post-processing": OTHER_VARIABLE}), "ACME")
    tokens = tokens + 1
    fails(permitted.post_processing, looked_at(), "other tokens")
