"""docs/usage-lines.md: complete, and every command in it does here what its row says."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmb.workloads import WORKLOADS
from llmb.workloads.recipes import RECIPES
from tests import needs
from tests.e2e import harness

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "usage-lines.md"

#: What a reader of the five source documents is told to type.
ORIGINALS = (
    "python3 -m bench --batch-size=XX --precision=XXXX --device=XX",
    "--sequence-length",
    "--hidden-size",
    "--intermediate-size",
    "--num-hidden-layers",
    "--num-attention-heads",
    "./scripts/aurora/1T.sc",
    "micro_batch_size=2",
    "batch_accumulation_per_replica=16",
    "micro_batch_size=32",
    "micro_batch_size=8",
    "micro_batch_size=128",
    "docker build -t llm-train-bench -f ./docker/Dockerfile .",
    "./docker/launch.sh",
    "docker build -t llm-train-bench/amd -f ./docker/Dockerfile.amd .",
    "./docker/launch_amd.sh",
    "DISABLE_ADDMM_HIP_LT=0",
    'python train.py configs/gpt2-125m.json --pt-compile --compile-mode "reduce-overhead"',
    "python train_ddp.py configs/gpt2-1.5b.json --bsz 32 --use-fp8",
    "python train_fsdp.py configs/llama-3.1-70b-proxy.json --sac-freq 1/4",
    "wget -nc https://raw.githubusercontent.com/Lightning-AI/lit-gpt/main/scripts/download.py",
    "wget -nc https://raw.githubusercontent.com/Lightning-AI/lit-gpt/main/scripts/"
    "convert_hf_checkpoint.py",
    "pip install jsonargparse huggingface_hub sentencepiece tokenizers",
    "pip install git+https://github.com/Lightning-AI/lit-gpt",
    "python 1_forward.py --compile thunder",
    "python download.py --repo_id meta-llama/Llama-2-7b-hf",
    "python convert_hf_checkpoint.py --checkpoint_dir checkpoints/meta-llama/Llama-2-7b-hf",
    "python compiled_model_inference.py --checkpoint_dir checkpoints/meta-llama/Llama-2-7b-hf "
    "--compile thunder --fake false",
    "python compiled_generation_inference.py --checkpoint_dir checkpoints/meta-llama/Llama-2-7b-hf "
    "--compile thunder --fake false",
    "python download.py --repo_id openlm-research/open_llama_3b --tokenizer_only true",
    "python train.py --compile thunder --dynamic false",
    "python train_fsdp.py --devices 2 --compile thunder --stage 2",
)

#: The words of the column "runs here", by what is checked.
RUN = {"yes", "one process"}
REFUSED = {"no: FP8": "FP8", "no: TF32": "TF32"}
ELSEWHERE = {"no: weights", "no: container", "no: files", "nothing"}


@dataclass(frozen=True)
class Row:
    """A line of the original, llmb's for it, and what becomes of that here."""

    original: str
    command: str
    runs: str
    differs: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def is_run(self) -> bool:
        return self.words[:2] == ["llmb", "run"]


def _rows() -> list[Row]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    found = [Row(cell[0], cell[1].strip("`"), cell[2], cell[3]) for cell in cells if len(cell) == 4]
    return [row for row in found if row.runs != "runs here" and not row.runs.startswith("---")]


def _runs(words: set[str]) -> list[Row]:
    """Return a row for every different ``llmb run`` whose fate is one of ``words``."""
    return list({row.command: row for row in ROWS if row.is_run and row.runs in words}.values())


def _is_a_size(row: Row) -> bool:
    """Tell whether ``row`` is a run with nothing but one size of the model given."""
    return row.words[2:3] in [[option.partition("=")[0]] for option in harness.TINY]


ROWS = _rows()


def _command(row: Row) -> str:
    return row.command


@pytest.mark.quick
def test_every_line_of_the_documents_has_a_row() -> None:
    lines = {text for row in ROWS for text in re.findall(r"`([^`]+)`", row.original)}
    assert [line for line in ORIGINALS if line not in lines] == []


@pytest.mark.quick
def test_every_row_has_a_command_and_a_word_that_is_explained() -> None:
    assert {row.runs for row in ROWS} == RUN | REFUSED.keys() | ELSEWHERE | {"thunder", "ranks"}
    assert [row for row in ROWS if (row.command == "-") != (row.runs == "nothing")] == []
    assert [row for row in ROWS if not row.differs] == []


@pytest.mark.quick
def test_a_line_for_several_devices_is_never_said_to_run_as_there() -> None:
    for row in ROWS:
        if "train_ddp" in row.original or "train_fsdp" in row.original or ".sc`" in row.original:
            one = row.runs == "one process" or "one process today" in row.differs
            assert one or "--recipe" in row.words, row


@pytest.mark.quick
def test_a_line_of_ranks_is_a_recipe_which_tests_of_recipes_run() -> None:
    rows = [row for row in ROWS if row.runs == "ranks"]
    assert rows
    for row in rows:
        assert row.words[:3] == ["llmb", "run", "--recipe"], row
        assert row.words[3] in RECIPES, row
    shown = {_option(row, "--recipe", "") for row in ROWS}
    assert RECIPES.keys() <= shown, "every recipe is a line of a document"


@pytest.mark.quick
def test_every_option_in_the_page_is_one_that_llmb_has() -> None:
    known: dict[tuple[str, ...], set[str]] = {}
    for row in ROWS:
        if row.words[0] != "llmb":
            continue
        depth = 2 if row.words[1] == "run" else 3
        command = tuple(row.words[1:depth])
        if command not in known:
            every = "--help-all" if command == ("run",) else "--help"
            text = harness.call(*command, every).stdout
            known[command] = set(re.findall(r"(?<![\w-])--[\w-]+", text))
        coming = {"--weights"} if row.runs == "no: weights" else set()
        given = {word for word in row.words if word.startswith("--")}
        assert given - coming <= known[command], row


@pytest.mark.quick
def test_every_launch_script_in_the_page_is_there() -> None:
    scripts = {row.words[0] for row in ROWS if row.runs == "no: container"}
    assert scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("row", [row for row in _runs(RUN) if not _is_a_size(row)], ids=_command)
def test_a_line_runs_here_at_tiny_shapes(tmp_path: Path, row: Row) -> None:
    ended = harness.run(tmp_path / "out", *_tiny(row))
    assert ended.code == 0, ended.stderr
    _check(ended.record, row)


def test_lines_that_are_one_size_each_run_here_together(tmp_path: Path) -> None:
    given = [row.words[2:] for row in _runs(RUN) if _is_a_size(row)]
    assert {option for option, _ in given} == {option.partition("=")[0] for option in harness.TINY}
    words = [word for one in given for word in one]
    fixed = ("--plugin=cpu", "--preset=debug", "--batch-size=1", harness.UNAUDITED)
    ended = harness.run(tmp_path / "out", *fixed, *words)
    assert ended.code == 0, ended.stderr
    shapes = ended.record["workload"]["shapes"]
    for option, size in given:
        assert shapes[option.removeprefix("--").replace("-", "_")] == int(size)


@pytest.mark.parametrize("row", _runs({"thunder"}), ids=_command)
def test_a_line_runs_with_thunder_or_is_refused_without_it(tmp_path: Path, row: Row) -> None:
    ended = harness.run(tmp_path / "out", *_tiny(row))
    if not needs.has_package("thunder"):
        assert ended.code == 3, ended.stderr
        assert "lightning-thunder" in ended.said[-1]
        return
    assert ended.code == 0, ended.stderr
    _check(ended.record, row)


@pytest.mark.parametrize("row", _runs(set(REFUSED)), ids=_command)
def test_a_format_this_processor_lacks_is_refused_with_the_reason(tmp_path: Path, row: Row) -> None:
    ended = harness.run(tmp_path / "out", *_tiny(row))
    assert ended.code == 3, ended.stderr
    (line,) = ended.said
    assert f"--precision {REFUSED[row.runs]}: plugin 'cpu' does not offer it" in line


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.runs == "yes" and not row.is_run], ids=_command
)
def test_a_line_that_is_no_run_says_something(row: Row) -> None:
    ended = harness.call(*row.words[1:])
    assert ended.code == 0, ended.stderr
    assert ended.stdout


def _tiny(row: Row) -> list[str]:
    """Return the row's options, followed by those that make it a matter of seconds."""
    given = row.words[2:]
    tiny = ["--plugin=cpu", "--preset=debug", *harness.TINY, harness.UNAUDITED]
    if _option(row, "--workload", "").startswith(("litgpt-model", "litgpt-gen")):
        tiny.append("--new-tokens=8")
    # The last one counts: hundreds of parts of a batch would take minutes.
    sizes = ("--micro-batch-size", "--accumulate", "--batch-size")
    tiny.extend(f"{name}=2" for name in sizes if name in given and "auto" not in given)
    return [*given, *tiny]


def _option(row: Row, name: str, default: str) -> str:
    words = row.words
    return words[words.index(name) + 1] if name in words else default


def _check(record: dict, row: Row) -> None:
    name = _option(row, "--workload", "llama-1.4b")
    config = record["config"]
    assert record["class"] == "debug"
    assert record["workload"]["name"] == name
    assert config["mode"] == WORKLOADS[name].modes[0].value
    assert config["executor"] == _option(row, "--executor", "eager")
    assert config["compile_mode"] == _option(row, "--compile-mode", "default")
    assert config["sac_freq"] == _option(row, "--sac-freq", None)
    assert config["dynamic"] == ("--dynamic" in row.words)
    assert config["accumulate"] == (2 if "--accumulate" in row.words else 1)
    if "--precision" in row.words:
        assert config["precision"]["name"] == _option(row, "--precision", "")
    if "--scope" in row.words:
        assert config["generate_scope"] == _option(row, "--scope", "")
