"""``config.toml`` of a run: the options of the same run, and neither seed nor nonce."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from llmb import cli
from llmb.cli import run, settings
from llmb.config import DataSource, Parallelism, RunConfig, RunRequest
from llmb.supervision.run_settings import as_toml, settings_of
from tests.builders import make_record

CONFIG = make_record().config
TEXT = DataSource(path="/a b", kind="text", tokenizer="bytes", sha256="0" * 64, tokens=9)


def asked(config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """Return the request of ``llmb run --config`` with the settings of ``config``."""
    monkeypatch.setattr("llmb.inputs.contents.describe", lambda *_: config.data)
    file = folder / "config.toml"
    file.write_bytes(as_toml(settings_of(config)))
    with click.Context(cli.llmb) as root:
        ctx = run.command.make_context("run", [f"--config={file}"], parent=root)
    assert settings.given_elsewhere(ctx)
    return run.request_of_ranks(ctx, dict(ctx.params), config.parallelism.world_size)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"executor": "inductor", "sac_freq": "1/2", "accumulate": 2, "constant_rate": True},
        {"plugin_options": {"text": 'quote " \\ é\U0001f600', "on": True}},
        {"workload": "own", "definition": {"family": "llama", "hidden_size": 64}},
        {"parallelism": Parallelism(dp_shard=2, tp=2, sequence_parallel=True)},
        {
            "data": DataSource(
                path="/a b", kind="text", tokenizer="bytes", sha256="0" * 64, tokens=9
            )
        },
        {"shape_overrides": {"hidden_size": 64}, "dynamic": True, "mixed_precision": True},
    ],
    ids=["plain", "choices", "quotes", "own", "ranks", "data", "shapes"],
)
def test_the_settings_of_a_run_ask_for_the_same_run_with_draws_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    config = RunConfig.model_validate({**CONFIG.model_dump(), **changes})
    request = asked(config, tmp_path, monkeypatch)
    same = ["workload", "definition", "mode", "plugin", "device", "batch_size", "accumulate"]
    same += ["executor", "compile_mode", "dynamic", "sac_freq", "constant_rate", "shape_overrides"]
    same += ["warmup_steps", "timed_steps", "repeats", "audit", "parallelism", "data"]
    assert {name: getattr(request, name) for name in same} == {
        name: getattr(config, name) for name in same
    }
    assert request.precision == config.precision.name
    assert (request.mixed_precision or False) is config.mixed_precision
    assert request.plugin_options == {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in config.plugin_options.items()
    }
    assert (request.seed, request.nonce) == (None, None)


def test_neither_seed_nor_nonce_is_in_the_file() -> None:
    seeded = CONFIG.model_copy(update={"seed": 123456789012, "nonce": "ab" * 16})
    text = as_toml(settings_of(seeded)).decode()
    assert "123456789012" not in text
    assert "ab" * 16 not in text
    assert json.dumps(settings_of(seeded, 5)["seed"]) == "5"
