"""``llmb data`` says what was written and what is there, to a person and to a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import llmb
from llmb.cli import data
from llmb.errors import UsageError
from llmb.inputs.contents import describe
from tests.unit.builders_inputs import write_pair, write_tokenizer


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Once upon\na time.\n")
    write_pair(tmp_path / "pair", [[1, 2, 3], [4]])
    return tmp_path


def call(*words):
    done = CliRunner().invoke(data.command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_pack_says_what_it_wrote(folder):
    said = call("pack", "a.txt", "--output", "out/x", "--eos", "256")
    assert said == ("wrote out/x.bin and .idx: 19 tokens (uint16, vocabulary 257), 1 document\n")
    assert describe("out/x").tokens == 19


def test_pack_tells_a_script_the_same_with_the_digest(folder):
    write_tokenizer(folder / "t.json", ["upon"])
    words = ("pack", "a.txt", "--output", "x.bin", "--lines", "--tokenizer", "t.json", "--json")
    said = json.loads(call(*words))
    assert said == {
        "prefix": "x",
        "tokens": 5,
        "documents": 2,
        "empty_documents": 0,
        "dtype": "uint16",
        "vocab_size": 2,
        "sha256": describe("x").sha256,
    }


def test_pack_replaces_only_when_told_to(folder):
    call("pack", "a.txt", "--output", "x")
    with pytest.raises(UsageError, match="--force"):
        call("pack", "a.txt", "--output", "x")
    call("pack", "a.txt", "--output", "x", "--force")


@pytest.mark.parametrize("words", [("pack", "a.txt"), ("pack", "--output", "x"), ("show",)])
def test_what_is_missing_is_a_usage_error(words):
    assert CliRunner().invoke(data.command, words).exit_code == UsageError.exit_code


def ended(*words, before=""):
    """Run the command as a user does, after the Python line ``before``."""
    code = f"{before}\nimport sys\nfrom llmb.cli import main\nsys.argv[0] = 'llmb'\nmain()"
    path = str(Path(llmb.__file__).resolve().parent.parent)
    return subprocess.run(
        [sys.executable, "-c", code, "data", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "before", "code", "said"),
    [
        (["show", "nope"], "", 2, "nope.bin"),
        (["show", "indexed:a.txt"], "", 2, "a.txt.idx"),
        (["pack", "a.txt", "--output", "pair"], "", 2, "--force"),
        (
            ["show", "a.txt", "--tokenizer", "t.json"],
            "import sys; sys.modules['tokenizers'] = None",
            3,
            "pip install 'llmb[data]'",
        ),
        (
            ["pack", "a.txt", "--output", "x"],
            "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (8, 8))",
            4,
            "cannot write 'x': File too large",
        ),
    ],
    ids=["missing", "no index", "in the way", "no library", "no room"],
)
def test_a_failure_is_one_line_and_its_exit_code(folder, words, before, code, said):
    there = sorted(folder.iterdir())
    done = ended(*words, before=before)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == there


def test_show_names_tokens_documents_type_and_digest(folder):
    said = call("show", "pair")
    rows = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert rows == {
        "path": str(folder / "pair"),
        "kind": "indexed",
        "tokens": "4",
        "documents": "2",
        "dtype": "uint16",
        "sha256": describe("pair").sha256,
    }


def test_show_of_a_text_names_its_tokenizer(folder):
    tokenizer = write_tokenizer(folder / "t.json", ["upon"])
    assert "tokenizer  bytes\n" in call("show", "a.txt")
    said = call("show", "a.txt", "--tokenizer", "t.json")
    assert f"tokenizer  {tokenizer}\n" in said
    assert "tokens     5\n" in said


def test_show_of_a_list_has_its_files_as_far_as_a_person_reads(folder):
    (folder / "list.txt").write_text("1 pair web\n" * 3 + "1 pair.bin \x1b[31mbooks\n" * 20)
    said = call("show", "list.txt")
    assert said.count("web, ") == 3
    assert said.count("\\x1b[31mbooks, ") == 17
    assert "and 3 more; --json shows all" in said
    assert "\x1b" not in said


def test_show_tells_a_script_every_part(folder):
    (folder / "list.txt").write_text("1 pair web\n3 pair books\n")
    said = json.loads(call("show", "list.txt", "--json"))
    parts = said.pop("parts")
    assert said == {
        "path": str(folder / "list.txt"),
        "kind": "file-list",
        "tokenizer": None,
        "tokens": 8,
        "documents": 4,
        "dtype": "uint16",
        "sha256": describe("list.txt").sha256,
    }
    assert [(part["corpus"], part["weight"]) for part in parts] == [("web", 0.25), ("books", 0.75)]
    assert {part["path"] for part in parts} == {str(folder / "pair")}
