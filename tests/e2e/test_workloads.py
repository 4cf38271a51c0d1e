"""The workloads on the command line: listed, shown, and trained at debug shapes under the audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb.workloads import WORKLOADS
from tests.e2e import harness

DEBUG = ("--plugin=cpu", "--preset=debug", "--json")


@pytest.mark.quick
def test_every_workload_is_listed_with_its_parameters() -> None:
    listed = harness.call("workload", "list")
    assert listed.code == 0
    for name in WORKLOADS:
        assert any(line.split()[:1] == [name] for line in listed.stdout.splitlines()), name
    assert "1,433,680,000" in listed.stdout


@pytest.mark.quick
def test_the_list_as_json_has_sizes_work_memory_and_origin() -> None:
    found = {
        one["name"]: one for one in json.loads(harness.call("workload", "list", "--json").stdout)
    }
    assert found.keys() == WORKLOADS.keys()
    one = found["gpt2-1.5b"]
    assert one["parameters"] == 1_557_686_400
    assert one["flops_per_token"]["6n_full"] == 10_289_836_800
    assert one["flops_convention"] == "6n_full"
    assert one["memory_bytes"]["BF16"] > 8 * one["parameters"]
    assert [row["values"]["tflops_per_device"] for row in one["published"][0]["rows"]][:2] == [
        350,
        400,
    ]
    assert any("not shifted" in note for note in one["notes"])


@pytest.mark.quick
def test_a_workload_is_shown_with_what_was_published_of_it() -> None:
    shown = harness.call("workload", "show", "nanotron-llama2-7b")
    assert shown.code == 0
    assert "6,738,415,616 parameters" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["32", "166", "3,610", "462,000"] in rows
    assert "58ffa31" in shown.stdout


@pytest.mark.quick
def test_an_unknown_workload_is_one_line_with_the_known_ones() -> None:
    for command in (("workload", "show", "gpt-9"), ("run", "--workload", "gpt-9")):
        ended = harness.call(*command)
        assert ended.code == 2
        (line,) = ended.stderr.splitlines()
        assert "'gpt-9'" in line
        assert "llama-1.4b" in line


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("gpt2-125m", "BF16"),
        ("nemo-bert-base", "BF16"),
        # Dropout and a scaled loss: the judged pass, made after the last step, needs the scale.
        ("nemo-bert-base", "FP16"),
    ],
)
def test_another_family_is_trained_under_the_audit_and_keeps_every_rule(
    tmp_path: Path, name: str, precision: str
) -> None:
    flags = ("--workload", name, "--precision", precision, "--accumulate=2", *DEBUG)
    ended = harness.run(tmp_path / "out", *flags)
    assert ended.code == 0, ended.stderr
    record = ended.record
    assert record["audit"]["verdict"] == "CONSISTENT", record["audit"]["findings"]
    assert record["workload"]["family"] == WORKLOADS[name].family
    assert (record["config"]["batch_size"], record["config"]["accumulate"]) == (4, 2)
    assert record["class"] == "debug"
    assert record["workload"]["clip_grad_norm"] == 1.0
    assert record["config"]["mixed_precision"]
    assert record["config"]["precision"]["master_weights"]
    judged = harness.call("audit", ended.directory)
    assert judged.code == 0, judged.stderr


def test_sizes_of_ones_own_are_run_as_a_debug_run_that_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    sizes = {"family": "gpt2", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "sequence_length": 16}
    file = tmp_path / "small-one.json"
    file.write_text(json.dumps(sizes))
    flags = ("--plugin=cpu", "--workload", file, "--precision=FP32", "--timed-steps=20", "--json")
    ended = harness.run(tmp_path / "out", *flags, harness.UNAUDITED)
    assert ended.code == 0, ended.stderr
    record = ended.record
    assert record["workload"]["name"] == "small-one"
    assert record["workload"]["shapes"]["vocab_size"] == 512
    assert any("small-one" in text for text in record["waivers"])
    again = harness.call("show", ended.directory, "--command").stdout
    assert '"name": "small-one", "family": "gpt2"' in again


def test_an_author_writes_checks_and_runs_a_workload_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    assert harness.call("workload", "new", "mine", "--family=llama", cwd=tmp_path).code == 0
    file.write_text(file.read_text().replace('"vocab_size": 32000', '"vocab_size": 0'))
    wrong = harness.call("workload", "check", file)
    assert (wrong.code, "vocab_size is 0: it must be at least 1" in wrong.stdout) == (2, True)
    file.write_text(file.read_text().replace('"vocab_size": 0', '"vocab_size": 512'))
    assert harness.call("workload", "check", file).code == 0
    ended = harness.run(tmp_path / "out", "--workload", file, *DEBUG, harness.UNAUDITED)
    assert ended.code == 0, ended.stderr
    assert ended.record["workload"]["name"] == "mine"
    assert ended.record["workload"]["shapes"]["vocab_size"] == 512


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workload=litgpt-forward", "--mode=train"), "has no mode train (it has forward)"),
        (("--workload=gpt2-125m", "--sequence-length=2048"), "use at most 1024"),
        (("--workload=missing.json",), "cannot read 'missing.json'"),
        (('--workload={"family": "gpt2"',), "not JSON"),
        (('--workload={"family": "gpt2", "schema": "llmb.workload/2"}',), "reads llmb.workload/1"),
        (('--workload={"family": "gpt2", "name": "a/b"}',), "the name 'a/b' may hold"),
        (('--workload={"family": "gpt2", "d_model": 3}',), "'d_model' is no size of gpt2"),
        (("--accumulate=3", "--batch-size=4"), "--batch-size 4 cannot be accumulated in 3"),
        (("--micro-batch-size=2", "--accumulate=3", "--batch-size=4"), "times --accumulate 3 is 6"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    fixed = ("--plugin=cpu", "--precision=FP32", *harness.TINY[:4])
    ended = harness.run(tmp_path / "out", *fixed, *flags)
    assert ended.code == 2, ended.stderr
    line = ended.stderr.strip().splitlines()[-1]
    assert words in line
    assert not list((tmp_path / "out").glob("*"))
