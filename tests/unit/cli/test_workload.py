"""``llmb workload``: how a document counts work, and the file of a user's own workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmb.cli import workload
from llmb.errors import UsageError
from llmb.reference.shapes import Gpt2Shape
from llmb.workloads import WORKLOADS
from llmb.workloads.conventions import CONVENTIONS
from llmb.workloads.definition import template


def shown(name: str) -> str:
    result = CliRunner().invoke(workload.command, ["show", name])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())  # where lines break says nothing


@pytest.mark.parametrize("name", ["llama-1.4b", "alcf-1t", "nemo-bert-base"])
def test_every_convention_is_shown_with_what_it_counts_and_its_source(name: str) -> None:
    text = shown(name)
    for convention in CONVENTIONS.values():
        assert convention.counts in text
        assert f"{convention.name} is from: {convention.source}" in text


def test_the_convention_of_the_document_is_marked() -> None:
    own = CONVENTIONS[WORKLOADS["gpt2-125m"].convention]
    assert f"{own.counts} <- the document's own" in shown("gpt2-125m")


def test_the_notes_of_a_workload_are_shown() -> None:
    text = shown("litgpt-train")
    for note in WORKLOADS["litgpt-train"].notes:
        assert f"note: {note}" in text


def test_bytes_are_told_in_terabytes_from_one_on() -> None:
    assert (workload._bytes(1e12), workload._bytes(0.99e12)) == ("1.00 TB", "990.00 GB")


# -- a user's own -----------------------------------------------------------------------------


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(workload.command, [*map(str, words)])


def checked(path: Path, text: str) -> list[str]:
    """Return the lines of ``llmb workload check``, without the folder."""
    path.write_text(text)
    ended = called("check", path)
    assert isinstance(ended.exception, UsageError)
    return [line.removeprefix(f"{path}:") for line in ended.stdout.splitlines()]


def test_every_fault_of_a_file_is_printed_with_its_line(tmp_path: Path) -> None:
    lines = ["{", '"family": "llama",', '"hiden_size": 64,', '"vocab_size": 9,', '"dropout": 1,']
    lines += ['"vocab_size": 0', "}"]
    found = checked(tmp_path / "llama-1.4b.json", "\n".join(lines))
    assert [line.partition(":")[0] for line in found] == ["1", "3", "5", "6", "6"]
    assert found[0] == "1: workload 'llama-1.4b' is one of llmb's own: choose another name"
    assert found[1] == "3: 'hiden_size' is no size of llama; did you mean hidden_size?"
    assert found[3:] == [
        "6: 'vocab_size' stands in line 4, too",
        "6: vocab_size is 0: it must be at least 1",
    ]


def test_a_comment_of_another_language_is_answered_with_the_comments_of_a_file(
    tmp_path: Path,
) -> None:
    (line,) = checked(tmp_path / "mine.json", '{\n// a comment\n"family": "llama"}')
    assert line.startswith("2: not JSON: ")
    assert line.endswith('JSON has no comments: write "//": "a comment", as a key')


def test_a_right_file_is_checked_and_shown_with_parameters_work_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(template("small", Gpt2Shape(hidden_size=96)))
    for command in ("check", "show"):
        output = " ".join(called(command, path).stdout.split())
        assert "small, 12,495,168 parameters" in output, command
        assert "a definition of your own" in output
        assert "gemm_full" in output
        assert "BF16 mixed" in output


def test_new_writes_a_file_once_and_refuses_names_that_no_workload_can_have(
    tmp_path: Path,
) -> None:
    made = called("new", "mine", "--family", "bert", "--directory", tmp_path)
    assert f"llmb workload check {tmp_path / 'mine.json'}" in made.stdout
    assert called("check", tmp_path / "mine.json").exit_code == 0
    for words in (("mine",), ("llama-1.4b",), ("../mine",), ("other", "--family", "gpt22")):
        refused = called("new", *words, "--directory", tmp_path)
        assert isinstance(refused.exception, UsageError), words
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


CONFIG = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500000.0},
    "quantization_config": {"quant_method": "fp8"},
}


def test_a_hugging_face_configuration_becomes_a_file_with_its_sizes(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    made = called("new", "mine", "--from-hf", config, "--directory", tmp_path)
    assert "note: the scaling of the rotary positions (llama3) is left out" in made.stdout
    assert "note: the quantisation of the weights is left out" in made.stdout
    written = json.loads((tmp_path / "mine.json").read_text())
    sizes = written["num_key_value_heads"], written["sequence_length"], written["rope_theta"]
    assert sizes == (8, 8192, 500000.0)
    assert "8,030,261,248 parameters" in called("check", tmp_path / "mine.json").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "mamba"}', "--from-hf .* is a 'mamba'"),
        (json.dumps({**CONFIG, "tie_word_embeddings": True}), "--from-hf .*tie_word_embeddings is"),
        ('{"model_type": "llama"}', "config.json': vocab_size: Field required"),
        ("[]", "--from-hf .*is not JSON .an object is needed"),
    ],
)
def test_a_configuration_of_another_function_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(
            workload.command, ["new", "x", "--from-hf", str(config)], catch_exceptions=False
        )
