"""Every recipe is a run that its ranks can share, at full size and in the debug form."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llmb import workloads
from llmb.cli import run
from llmb.cli.recipe import apply
from llmb.config import RunRequest
from llmb.errors import UsageError
from llmb.parallel import checks
from llmb.workloads.recipes import RECIPES, RunRecipe, recipe_of

FORMS = [(name, form) for name in RECIPES for form in ("full", "debug")]


def command_line(*words: str) -> tuple[RunRequest, dict[str, Any]]:
    """Return what ``llmb run`` makes of ``words``, and its flags."""
    ctx = run.command.make_context("run", list(words))
    flags = dict(ctx.params)
    apply(ctx, flags)
    mesh = run.mesh_of(flags, flags["nproc"])
    return run.request_of(ctx, flags).model_copy(update={"parallelism": mesh}), flags


def words_of(name: str, form: str) -> tuple[str, ...]:
    return (f"--recipe={name}", *(("--preset=debug",) if form == "debug" else ()))


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_recipe_is_a_run_that_its_ranks_can_share(name: str, form: str) -> None:
    request, _ = command_line(*words_of(name, form))
    recipe = RECIPES[name] if form == "full" else RECIPES[name].debug
    mesh, workload = request.parallelism, workloads.of(request)
    assert (mesh.world_size, mesh.tp, mesh.pp) == (recipe.world_sizes[0], recipe.tp, recipe.pp)
    assert mesh.replicas == recipe.replicas
    assert (mesh.dp_shard > 1) == bool(recipe.zero)
    assert mesh.reshard_after_forward == (recipe.zero in (None, 3))
    assert request.batch_size == recipe.micro_batch_size * recipe.accumulate
    assert (request.workload, request.precision) == (recipe.workload, recipe.precision)
    checks.check(request, workloads.mode_of(workload, None), workload.shape)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_as_its_document_says(recipe: RunRecipe) -> None:
    workload = workloads.find(recipe.workload, {})
    assert (recipe.tp, recipe.pp) == (workload.tp, workload.pp)
    # llm-train-bench's own settings are those of one device, and a batch its lines name.
    if workload.document != "llm-train-bench":
        assert recipe.micro_batch_size == workload.recipe.micro_batch_size
        assert recipe.world_sizes[0] == workload.world_size
    assert recipe.accumulate == workload.recipe.accumulate
    assert all(size % (recipe.tp * recipe.pp) == 0 for size in recipe.world_sizes)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_debug_form_has_every_kind_of_sharing_by_two(recipe: RunRecipe) -> None:
    small = recipe.debug
    for size, few in (
        (recipe.tp, small.tp),
        (recipe.pp, small.pp),
        (recipe.replicas, small.replicas),
    ):
        assert few == min(size, 2)
    assert small.world_sizes[0] <= math.prod((2, 2, 2))
    assert small.accumulate >= small.pp


def test_the_published_counts_of_nanotron_are_those_of_its_rows() -> None:
    nodes = (2, 4, 8, 16, 32)
    assert recipe_of("nanotron-llama2-7b").world_sizes == tuple(4 * n for n in nodes)
    request, _ = command_line("--recipe=nanotron-llama2-7b", "--nproc=128")
    assert (request.parallelism.tp, request.parallelism.dp_replicate) == (4, 32)
    assert isinstance(request.batch_size, int)
    assert request.batch_size * request.parallelism.replicas == 1024, "4 million tokens"


def test_the_command_line_comes_before_the_recipe_and_that_before_the_preset() -> None:
    words = ("--recipe=litgpt-fsdp-zero3", "--preset=debug", "--precision=FP32", "--zero=2")
    request, flags = command_line(*words)
    assert (request.precision, flags["zero"]) == ("FP32", 2)
    assert (request.workload, request.batch_size) == ("litgpt-fsdp", 2)
    assert request.shape_overrides["hidden_size"] == 64
    request, _ = command_line("--recipe=nanotron-llama2-7b", "--batch-size=64")
    assert (request.batch_size, request.accumulate) == (64, 16)


def test_an_unknown_recipe_and_a_scaled_one_are_refused() -> None:
    with pytest.raises(UsageError, match="choose one of nanotron-llama2-7b, nemo-bert-base,"):
        command_line("--recipe=nanotron")
    with pytest.raises(UsageError, match="leave --scaling out"):
        command_line("--recipe=alcf-7b", "--scaling=1,2")
