"""``llmb show``, ``verify`` and ``package-submission`` say what a person or a script needs."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from llmb.cli import package_submission, run, show, verify
from llmb.config import Parallelism
from llmb.errors import BundleRefusedError, UsageError
from llmb.records.canonical import pretty_bytes
from tests import builders

SHAPES = (
    "sequence_length",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=2)


@pytest.fixture
def path(tmp_path, record):
    return builders.write(tmp_path / "run", builders.run_files(record))


def written(tmp_path, record):
    path = tmp_path / "record.json"
    path.write_bytes(pretty_bytes(record))
    return path


def call(command, *words):
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_the_summary_holds_everything_that_qualifies_the_headline(path, record):
    text = " ".join(call(show.command, path).output.split())
    assert f"{record.result.tokens_per_second:,.2f} tokens/s" in text
    for words in (
        "95 % interval",
        "OFFICIAL",
        "UNVERIFIED",
        "BF16 declared, effective not observed",
    ):
        assert words in text
    assert "Fast [1]" in text, "brackets are not markup"
    assert "shorter than 30 s" in text


def test_what_is_none_is_not_measured(tmp_path, record):
    def forget(data):
        names = ("ci95", "mfu", "fraction_of_ceiling", "peak_memory_bytes", "energy", "step_time_s")
        data["result"].update(dict.fromkeys(names))

    forgetful = builders.edited(record, forget)
    text = call(show.command, written(tmp_path, forgetful)).output
    assert text.count("not measured") == 6  # the five, and the steal that the builder leaves out
    assert "interval" not in text.splitlines()[0]


def committed(record):
    document = builders.seed_commitment()
    return builders.edited(record, lambda data: data.update(seed_commitment=document))


def test_who_committed_to_the_seed_is_shown_and_nothing_where_nobody_did(tmp_path, path, record):
    text = " ".join(call(show.command, written(tmp_path, committed(record))).output.split())
    published = "A [conference] (https://seeds.example, 2026-11-02)"
    digest = builders.seed_commitment()["commitment"]
    assert f"seed committed to by {published}, as {digest[:12]} " in text
    assert "committed" not in call(show.command, path).output


def test_the_command_of_a_run_with_a_commitment_needs_no_file(record):
    assert show.command_line(committed(record)) == show.command_line(record)
    assert "--seed 7 " in show.command_line(committed(record))


def test_json_is_the_whole_record(path, record):
    assert call(show.command, path, "--json").output.encode() == pretty_bytes(record)


def test_the_command_is_the_configuration_word_for_word(path):
    words = shlex.split(call(show.command, path, "--command").output)
    assert words[:2] == ["llmb", "run"]
    flags = dict(zip(words[2:24:2], words[3:24:2], strict=True))
    assert flags == {
        "--workload": "llama-1.4b",
        "--mode": "train",
        "--plugin": "fast",
        "--device": "fast:0",
        "--precision": "BF16",
        "--batch-size": "8",
        "--seed": "7",
        "--warmup-steps": "2",
        "--timed-steps": "50",
        "--repeats": "2",
        "--audit": "full",
    }
    assert words[24:] == ["-O", "compile=max autotune", "-O", "fused=true", "-O", "level=3"]


def test_the_command_carries_changed_shapes(record):
    def shrink(data):
        data["config"]["shape_overrides"] = {"num_hidden_layers": 2}

    assert "--num-hidden-layers 2" in show.command_line(builders.edited(record, shrink))


@pytest.mark.parametrize("mode", ["quick", "off"])
def test_the_command_asks_for_the_same_audit(record, mode):
    other = builders.edited(record, lambda data: data["config"].update(audit=mode))
    assert f"--audit {mode}" in show.command_line(other)


@pytest.mark.parametrize("evil", ["; rm -rf ~", "$(reboot)", "`x`", "a b", "--output-dir=/"])
def test_the_command_quotes_what_a_stranger_wrote(record, evil):
    forged = builders.edited(record, lambda data: data["config"].update(device=evil))
    words = shlex.split(show.command_line(forged))
    assert evil in words or f"--device={evil}" in words


def test_a_command_that_could_act_on_a_terminal_is_refused(record):
    forged = builders.edited(record, lambda data: data["config"].update(device="\x1b[2J"))
    with pytest.raises(BundleRefusedError, match="unprintable"):
        show.command_line(forged)


def test_the_summary_never_passes_control_characters_on(tmp_path, record):
    forged = builders.edited(record, lambda data: data.update(warnings=["\x1b]0;owned\x07\u202e"]))
    text = call(show.command, written(tmp_path, forged)).output
    assert "owned" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_run_understands_the_command(record):
    def shrink(data):
        data["config"]["shape_overrides"] = dict.fromkeys(SHAPES, 64)

    words = shlex.split(show.command_line(builders.edited(record, shrink)))
    parsed = run.command.make_context("run", words[2:]).params
    assert parsed["batch_size"] == 8
    assert all(parsed[name] == 64 for name in SHAPES)


def test_package_then_verify_end_with_ok_and_the_headline(path, tmp_path):
    output = tmp_path / "submissions"
    said = call(
        package_submission.command,
        *(path, "--submitter", "acme", "--system", "box", "--output", output, "--json", "--zip"),
        *("--missing", "TF32=no such hardware"),
    )
    (bundle,) = json.loads(said.output)["bundles"]
    lines = call(verify.command, bundle).output.splitlines()
    assert lines[-4].startswith("OK  ")
    assert "UNVERIFIED" in lines[-3]
    assert lines[-2].startswith("    made by llmb ")
    assert lines[-1].startswith("consistent: these files fit together; not shown: ")
    assert "2 bundles verified" in call(verify.command, "--all", output).output


def test_a_refused_bundle_raises_after_every_bundle_was_looked_at(path, tmp_path, record):
    good = builders.write(tmp_path / "all" / "good", builders.bundle_files(record))
    bad = builders.write(tmp_path / "all" / "bad", builders.bundle_files(record))
    (bad / "log.txt").write_text("edited")
    runner = CliRunner()
    result = runner.invoke(verify.command, ["--json", str(bad), str(good)])
    assert isinstance(result.exception, BundleRefusedError)
    assert [one["ok"] for one in json.loads(result.output)] == [False, True]
    alone = runner.invoke(verify.command, [str(bad)])
    assert "REFUSED" in str(alone.exception)


def test_a_missing_reason_without_a_reason_is_a_usage_error(path):
    words = (path, "--submitter", "a", "--system", "b", "--missing", "TF32")
    assert call(package_submission.command, *words).exit_code == 2


def test_verify_without_a_bundle_is_a_usage_error():
    assert call(verify.command).exit_code == 2


@pytest.mark.parametrize("module", [show, verify, package_submission])
def test_help_has_an_example(module):
    assert "Example" in call(module.command, "--help").output


@pytest.mark.parametrize(
    "mesh",
    [
        {"dp_replicate": 2},
        {"dp_shard": 4, "reshard_after_forward": False},
        {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "sequence_parallel": True},
        {"tp": 2, "loss_parallel": True},
        {"pp": 2},
        {"pp": 4, "dp_shard": 2, "reshard_after_forward": False, "schedule": "ZBVZeroBubble"},
    ],
    ids=str,
)
def test_the_command_shares_the_work_among_as_many_ranks(record, mesh):
    config = record.config.model_copy(update={"parallelism": Parallelism(**mesh)})
    shown = record.model_copy(update={"config": config})
    words = shlex.split(show.command_line(shown))[2:]
    flags = run.command.make_context("run", words).params
    assert run.mesh_of(flags, flags["nproc"]) == config.parallelism
    assert flags["accumulate"] == config.accumulate


@pytest.mark.parametrize("alone_s", [(0.5, 0.75), (None, None)])
def test_of_many_ranks_the_summary_says_what_they_shared_and_which_was_slowest(
    tmp_path, record, alone_s
):
    def share(data):
        (first,) = data["topology"]["ranks"]
        ranks = [{**first, "rank": n, "alone_s": seconds} for n, seconds in enumerate(alone_s)]
        mesh = {**data["config"]["parallelism"], "dp_replicate": 2}
        data["config"]["parallelism"] = mesh
        data["topology"] |= {"ranks": ranks, "world_size": 2, "parallelism": mesh}

    path = tmp_path / "record.json"
    path.write_bytes(pretty_bytes(builders.edited(record, share)))
    shown = CliRunner().invoke(show.command, [str(path)]).output
    assert "2 on 1 host: dp_replicate 2" in shown
    words = "1.200 times the median rank's" if alone_s[0] else "not measured (none can make a step"
    assert words in " ".join(shown.split())


def test_html_writes_the_page_into_the_run_directory_and_says_where(tmp_path, record):
    files = builders.run_files(record)
    path = builders.write(tmp_path / "run", files)
    assert call(show.command, path, "--html").output == f"page: {path / 'report.html'}\n"
    text = (path / "report.html").read_text(encoding="utf-8")
    assert f"{record.result.tokens_per_second:,.0f} tokens/s" in text
    assert "llmb run --workload llama-1.4b" in text


def test_html_never_adds_a_file_to_a_bundle(tmp_path, record):
    files = builders.with_manifest(builders.run_files(record))
    bundle = builders.write(tmp_path / "bundle", files)
    with pytest.raises(UsageError, match="--output FILE"):
        call(show.command, bundle, "--html")
    call(show.command, bundle, "--html", "--output", tmp_path / "page.html")
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "page.html"}
    assert not (bundle / "report.html").exists()


def test_html_of_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, record):
    path = written(tmp_path, record)
    with pytest.raises(UsageError, match="cannot write there"):
        call(show.command, path, "--html", "--output", tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_output_without_html_is_refused(path):
    with pytest.raises(UsageError, match="only with --html"):
        call(show.command, path, "--output", "page.html")
