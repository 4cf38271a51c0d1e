"""A real run with defaults from llmb.toml: its name, its tag, its settings, and its bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests import patience
from tests.e2e.harness import TINY_RUN, UNAUDITED, environment, llmb_command


def call(folder: Path, *words: str, **extra: str):
    return patience.run(llmb_command(*words), env=environment(**extra), cwd=folder)


def test_a_run_takes_defaults_from_a_file_and_is_found_by_its_tag(tmp_path: Path) -> None:
    options = dict(word.lstrip("-").split("=") for word in (*TINY_RUN, UNAUDITED))
    lines = [f'{name} = "{value}"' for name, value in options.items()]
    (tmp_path / "llmb.toml").write_text("\n".join(['[run]\noutput-dir = "results"', *lines]))
    done = call(tmp_path, "run", "--device=cpu", "--tag=odd-tag", LLMB_RUN_PRECISION="FP32")
    assert done.returncode == 0, done.stderr
    said = ["llmb: the environment sets precision = FP32", "llmb: llmb.toml sets 9 options"]
    assert done.stderr.splitlines()[:2] == said
    path = call(tmp_path, "latest").stdout.strip()
    assert path.startswith("results/")
    shown = json.loads(call(tmp_path, "show", "odd-tag", "--json").stdout)
    assert shown["config"]["precision"]["name"] == "FP32"
    assert "odd-tag" not in json.dumps(shown)
    (line,) = json.loads(call(tmp_path, "list", "--tag=odd-tag", "--json").stdout)["runs"]
    assert line["tokens_per_second"] == shown["result"]["tokens_per_second"]

    # The run's own settings make the same command, and no bundle has them.
    (tmp_path / "llmb.toml").unlink()
    shutil.copytree(tmp_path / path, tmp_path / "runs" / "kept", dirs_exist_ok=True)
    asked = call(tmp_path, "run", "--config=kept", "--nonce=00", "--device=cpu")
    assert (asked.returncode, "--nonce '00' is not" in asked.stderr) == (2, True), asked.stderr
    words = ("package-submission", "odd-tag", "--debug", "--submitter=a", "--system=b", "--json")
    (bundle,) = json.loads(call(tmp_path, *words).stdout)["bundles"]
    names = {file.name for file in (tmp_path / bundle).rglob("*")}
    assert names & {"record.json", "config.toml", "tags", "odd-tag"} == {"record.json"}
