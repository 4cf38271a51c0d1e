"""``llmb run --recipe NAME --preset debug`` starts its ranks here, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb.workloads.recipes import RECIPES
from tests.e2e import harness

RUN = [name for name, recipe in RECIPES.items() if recipe.precision != "FP8"]


@pytest.mark.parametrize("name", RUN)
def test_a_recipe_runs_at_debug_shapes(tmp_path: Path, name: str) -> None:
    small = RECIPES[name].debug
    few = (*harness.TINY, "--plugin=cpu", harness.UNAUDITED)
    ended = harness.run(tmp_path / "out", f"--recipe={name}", "--preset=debug", *few)
    assert ended.code == 0, ended.stderr
    record = ended.record
    config, mesh = record["config"], record["topology"]["parallelism"]
    assert record["topology"]["world_size"] == small.world_sizes[0]
    assert (mesh["tp"], mesh["pp"]) == (small.tp, small.pp)
    assert config["workload"] == small.workload
    assert config["accumulate"] == small.accumulate
    assert config["precision"]["name"] == small.precision
    assert config["sac_freq"] == small.sac_freq
    assert record["class"] == "debug"


@pytest.mark.parametrize("name", ["llm-train-bench-ddp", "llm-train-bench-fsdp"])
def test_what_ranks_share_is_compiled_where_the_command_line_says_so(
    tmp_path: Path, name: str
) -> None:
    words = (f"--recipe={name}", "--executor=inductor", "--preset=debug", "--plugin=cpu")
    ended = harness.run(tmp_path / "out", *words, *harness.TINY)
    assert ended.code == 0, ended.stderr
    record = ended.record
    assert record["config"]["executor"] == "inductor"
    assert record["audit"]["verdict"] == "CONSISTENT", record["audit"]["findings"]
    assert all(told["compilations"] >= 1 for told in record["timing"]["telemetry"])
    assert ended.evidence("ranks.json")["collectives"], "what is compiled is listened to as well"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nanotron-llama2-7b", 4, "1024 ranks of nanotron-llama2-7b in BF16"),
        ("llm-train-bench-ddp-fp8", 3, "--precision FP8: plugin 'cpu' does not offer it"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_in_a_line_before_any_rank_starts(
    tmp_path: Path, name: str, code: int, words: str
) -> None:
    # More ranks of it than any processor's memory holds.
    ended = harness.run(tmp_path / "out", f"--recipe={name}", "--plugin=cpu", "--nproc=1024")
    assert (ended.code, len(ended.said)) == (code, 1), ended.stderr
    assert words in ended.said[0]
    assert not (tmp_path / "out").exists()


def test_the_list_has_every_recipe() -> None:
    ended = harness.call("workload", "recipes", "--json")
    assert [recipe["name"] for recipe in json.loads(ended.stdout)] == list(RECIPES)
    assert "nanotron-llama2-7b" in harness.call("workload", "recipes").stdout
