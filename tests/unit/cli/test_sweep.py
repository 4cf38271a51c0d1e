"""``llmb sweep``: its table, its JSON, how to go on, and options that do not go together."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from llmb.cli import run, sweep
from llmb.cli.run_options import OF_RANKS
from llmb.errors import (
    AuditInvalidError,
    BundleRefusedError,
    NotEnoughMemoryError,
    RunFailedError,
    UsageError,
)
from llmb.records.sweep_overview import LeftOut, Point
from llmb.sweep import overview
from llmb.sweep.directory import Ended, SweepDirectory
from llmb.sweep.execution import Progress
from tests import builders
from tests.unit.sweep.builders_sweep import finish, record_of
from tests.unit.sweep.builders_sweep import sweep as make_sweep

EMULATED = LeftOut(name="FP16", reason="cpu only emulates it")


def call(*words: object) -> Result:
    arguments = [str(word) for word in words]
    return CliRunner().invoke(sweep.command, arguments, catch_exceptions=False)


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    """A finished sweep: BF16 ends at 4, FP32 does not fit at all, FP16 is left out."""
    made = make_sweep(tmp_path, "BF16", "FP32", left_out=(EMULATED,))
    finish(made, Point("BF16", 1), 1, faster=0.5)
    finish(made, Point("BF16", 2), 2)
    for point in (Point("BF16", 4), Point("FP32", 1)):
        made.write_end(point, Ended(status="out_of_memory", message="the end", seconds=1.0))
    return made


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """Return precision and batch size -> all cells, of the lines that have both."""
    cells = [line.replace("*", "").split() for line in text.splitlines()]
    return {(row[0], row[1]): row for row in cells if len(row) > 2 and row[0] in ("BF16", "FP32")}


def test_a_row_holds_what_qualifies_its_figure(directory: SweepDirectory) -> None:
    output, record = call("--show", directory.path).output, record_of(Point("BF16", 2))
    row, result = " ".join(rows(output)["BF16", "2"]), record.result
    for words in (
        f"{result.tokens_per_second:,.2f}",
        f"{result.ci95[0]:,.2f} to {result.ci95[1]:,.2f}",
        f"{result.fraction_of_ceiling:.1%}",
        "20.00 GB",
        record.audit.verdict.value,
        "official",
    ):
        assert words in row


def test_the_fastest_of_a_precision_is_marked_and_no_other(directory: SweepDirectory) -> None:
    marked = [line for line in call("--show", directory.path).output.splitlines() if "* " in line]
    assert [line.split()[:3] for line in marked[:1]] == [["*", "BF16", "2"]]
    assert marked[1:] == ["* the fastest of its precision"]


def test_points_without_a_figure_say_why(directory: SweepDirectory) -> None:
    output = call("--show", directory.path).output
    assert "out of memory" in " ".join(rows(output)["BF16", "4"])
    assert "not tried" in " ".join(rows(output)["FP32", "2"])
    assert "FP32, batch size 1: the end" in output
    assert "FP16 is left out: cpu only emulates it" in output


def test_the_command_to_hand_in_names_the_best_runs_and_what_is_missing(
    directory: SweepDirectory,
) -> None:
    lines = call("--show", directory.path).output.splitlines()
    (line,) = [line for line in lines if "package-submission" in line]
    words = shlex.split(line)
    assert [w for w in words if str(directory.path) in w] == [
        str(directory.path / str(directory.state(Point("BF16", 2)).run))
    ]
    missing = [words[n + 1] for n, word in enumerate(words) if word == "--missing"]
    assert missing == [
        "FP16=cpu only emulates it",
        "FP32=batch size 1 is out of memory",
    ]


def test_debug_runs_are_not_offered_to_be_handed_in(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, batch_sizes=(1,))
    point = Point("BF16", 1)
    run_directory = finish(made, point)
    debug = builders.edited(record_of(point), lambda data: data.update({"class": "debug"}))
    builders.write(run_directory, builders.run_files(debug))
    output = call("--show", made.path).output
    assert "package-submission" not in output
    assert "debug runs cannot be handed in" in output


def test_an_unfinished_sweep_says_how_to_go_on(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, batch_sizes=(1, 2))
    finish(made, Point("BF16", 1))
    output = call("--show", made.path).output
    assert "to be run" in output
    assert f"llmb sweep --resume {made.path}" in output
    assert "package-submission" not in output


def test_json_holds_the_plan_every_point_and_the_best_runs(directory: SweepDirectory) -> None:
    found = json.loads(call("--show", directory.path, "--json").output)
    assert found["schema"] == "llmb.sweep-overview/1"
    assert found["plan"]["schema"] == "llmb.sweep/1"
    assert found["best"] == {"BF16": directory.state(Point("BF16", 2)).run}
    assert [(p["precision"], p["batch_size"], p["status"]) for p in found["points"]] == [
        ("BF16", 1, "measured"),
        ("BF16", 2, "measured"),
        ("BF16", 4, "out_of_memory"),
        ("FP32", 1, "out_of_memory"),
        ("FP32", 2, "not_tried"),
        ("FP32", 4, "not_tried"),
    ]
    assert found["points"][1]["measured"]["class"] == "official"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--show", "DIR", "--repeats", "2"), "--show"),
        (("--show", "DIR", "--resume", "DIR"), "--show"),
        (("--resume", "DIR", "--output-dir", "x"), "--output-dir"),
        (
            ("--resume", "DIR", "--batch-size", "1,2,4", "--timed-steps", "60"),
            "--timed-steps is 60",
        ),
        (("--resume", "DIR", "--batch-size", "1,2"), "--batch-size is 1,2,"),
        (("--resume", "DIR", "--preset", "debug"), "begun with"),
        (("--show", "nowhere"), "not the folder of a sweep"),
        (("--precision", "BF16,"), "not the name of a format"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    directory: SweepDirectory, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        call(*(directory.path if word == "DIR" else word for word in words))


def test_a_damaged_plan_ends_in_the_exit_code_of_damaged_records(
    directory: SweepDirectory,
) -> None:
    (directory.path / "sweep.json").write_bytes(b"{")
    with pytest.raises(BundleRefusedError):
        call("--show", directory.path)


@pytest.mark.parametrize("given", ["0", "1,x", "", "1,,2", "-1", "AUTO"])
def test_batch_sizes_that_are_none_are_a_usage_error(given: str) -> None:
    done = call("--batch-size", given)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_batch_sizes_are_taken_in_order_and_each_once() -> None:
    assert sweep.BatchSizes().convert("8,1,2,2", None, None) == (1, 2, 8)
    assert sweep.BatchSizes().convert("auto", None, None) == "auto"


def test_a_sweep_has_every_option_of_a_run_but_those_named() -> None:
    def names(command: click.Command) -> set[str | None]:
        return {param.name for param in command.params}

    own = {"precisions", "batch_sizes", "max_batch_size", "resume", "show", "wide"}
    without = {
        "precision",
        "batch_size",
        "micro_batch_size",
        "seed_commitment",
        "timestamp",
        "within",
        "config",
        "tags",
        *OF_RANKS,
    }
    assert names(sweep.command) == (names(run.command) - without) | own


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(89, "89 s"), (90, "2 min"), (3600, "60 min"), (5460, "1.5 h"), (36000, "10.0 h")],
)
def test_a_duration_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert sweep._duration(seconds) == words


# -- how a sweep ends, and what is said meanwhile ----------------------------------------------


def ended(made: SweepDirectory, **changes: object) -> None:
    found = overview.of(made)
    states = tuple(state.model_copy(update=changes) for state in found.points[:1])
    sweep._end(made, found.model_copy(update={"points": (*states, *found.points[1:])}))


def test_a_sweep_with_a_figure_ends_in_0(directory: SweepDirectory) -> None:
    done = CliRunner().invoke(click.Command("sweep", callback=lambda: ended(directory)))
    assert done.exit_code == 0


def test_a_point_that_failed_ends_in_4_and_says_how_to_go_on(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "BF16", batch_sizes=(1, 2))
    finish(made, Point("BF16", 1))
    made.write_end(Point("BF16", 2), Ended(status="failed", message="x", seconds=1.0))
    with pytest.raises(RunFailedError, match=r"^1 of 2 points failed: first .*--resume"):
        ended(made)


def test_an_invalid_point_ends_in_5_and_is_named(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "BF16", batch_sizes=(1,))
    point = Point("BF16", 1)
    run_directory = finish(made, point)
    invalid = builders.edited(
        record_of(point), lambda data: data["audit"].update(verdict="INVALID")
    )
    builders.write(run_directory, builders.run_files(invalid))
    with pytest.raises(AuditInvalidError, match=r"^1 of 1 points are INVALID: first "):
        ended(made)


def test_a_sweep_in_which_nothing_fits_ends_in_4_too(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "BF16", batch_sizes=(1,))
    made.write_end(Point("BF16", 1), Ended(status="out_of_memory", message="x", seconds=1.0))
    with pytest.raises(NotEnoughMemoryError, match="nothing was measured"):
        ended(made)


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(1, None, None), "llmb: point 1: BF16"),
        (Progress(2, 6, None), "llmb: point 2 of about 6: BF16"),
        (Progress(2, 6, 120.0), "; about 2 min left\n"),
    ],
)
def test_a_watcher_says_where_the_sweep_stands_unless_quiet(
    capsys: pytest.CaptureFixture[str], progress: Progress, words: str
) -> None:
    for quiet in (False, True):
        sweep._StderrWatcher(Path("sweep"), quiet=quiet).begins(Point("BF16", 1), progress)
        assert (words in capsys.readouterr().err) is not quiet


def test_a_watcher_says_what_became_of_a_point(
    directory: SweepDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = sweep._StderrWatcher(directory.path, quiet=False)
    watcher.ended(directory.state(Point("BF16", 2)), kept=True)
    rate = record_of(Point("BF16", 2)).result.tokens_per_second
    assert f"kept: {rate:,.2f} tokens/s" in capsys.readouterr().err
    watcher.ended(directory.state(Point("FP32", 1)), kept=False)
    assert capsys.readouterr().err.endswith(": the end\n")


def test_a_point_that_may_be_as_fast_as_the_fastest_is_marked_as_tied(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "BF16")
    for size, faster in ((1, 0.5), (2, 1.0), (4, 0.999)):
        finish(made, Point("BF16", size), size, faster=faster)
    lines = call("--show", made.path).output.splitlines()
    marks = [line.split()[0] for line in lines if " BF16 " in f" {line} "][:3]
    assert marks == ["BF16", "*", "="]
    assert any(line.startswith("= tied with the fastest: the 95 % intervals") for line in lines)
    (tied,) = json.loads(call("--show", made.path, "--json").output)["tied"].values()
    assert [Path(run).parent.name for run in tied] == [made.folder(Point("BF16", 4)).name]


def test_intervals_of_two_values_are_not_printed_in_the_table(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "BF16")
    record = record_of(Point("BF16", 1), repeats=2)
    builders.write(made.folder(Point("BF16", 1)) / "run", builders.run_files(record))
    assert "none (--repeats 5)" in call("--show", made.path).output


def test_a_run_of_a_sweep_has_a_page_when_it_ends_and_kept_ones_are_left_alone(
    directory: SweepDirectory,
) -> None:
    state = directory.state(Point("BF16", 2))
    assert state.run is not None
    page = directory.path / state.run / "report.html"
    watcher = sweep._StderrWatcher(directory.path, quiet=True)
    watcher.ended(state, kept=True)
    assert not page.exists()
    watcher.ended(state, kept=False)
    assert "</html>" in page.read_text(encoding="utf-8")
