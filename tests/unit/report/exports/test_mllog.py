"""MLPerf's log lines: what its parsers ask of a line, and where installed, those themselves."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from llmb.comparison.figures import run_of
from llmb.report.exports import mllog
from tests import needs
from tests.builders import edited, make_record
from tests.unit.builders_times import noise, of_workload, record_of

TOKEN = ":::MLLOG "
#: Rulesets whose parsers are tried; each has a parser of its own in mlperf-logging.
RULESETS = ("1.0.0", "3.1.0", "5.1.0", "6.0.0", "6.1.0")
#: What the rules of MLPerf training ask for and a throughput benchmark has not.
ABSENT = {
    "submission_org",
    "submission_division",
    "eval_accuracy",
    "eval_samples",
    "config_filename",
    # A record has the lowest precision of all, measured, and not that of each of these.
    "lowest_numerical_precision_in_linear",
    "lowest_numerical_precision_in_attn",
    "lowest_numerical_precision_in_comm",
}


def hostile(data):
    data["plugin"]["version"] = '\n:::MLLOG {"key": "forged"} \u202e'


def parsed(record):
    return [json.loads(line.removeprefix(TOKEN)) for line in mllog.lines(run_of(record))]


def test_every_line_is_the_token_and_one_object_with_what_the_parser_reads() -> None:
    for line in mllog.lines(run_of(edited(make_record(3), hostile))):
        assert line.startswith(TOKEN)
        assert line.count(":::MLLOG") == 1, "a second token would hide the first"
        assert line.isascii()
        assert line.isprintable()
        content = json.loads(line.removeprefix(TOKEN))
        assert content.keys() >= {"time_ms", "key", "value", "metadata", "event_type", "namespace"}
        assert isinstance(content["time_ms"], float)


def test_the_window_is_the_headlines_to_the_microsecond() -> None:
    record = make_record(3)
    at = {one["key"]: one["time_ms"] for one in parsed(record) if one["key"].startswith("run_")}
    window = (record.timing.stop_ns - record.timing.start_ns) / 1e6
    assert at["run_stop"] - at["run_start"] == pytest.approx(window, abs=2e-3)


def test_blocks_add_up_to_the_samples_and_the_throughput_of_the_run() -> None:
    record = make_record(3)
    found = parsed(record)
    starts, stops = ([o for o in found if o["key"] == f"block_{k}"] for k in ("start", "stop"))
    assert [one["metadata"]["samples_count"] for one in starts] == [0, 80, 160, 240, 320]
    assert [one["metadata"]["samples_count"] for one in stops] == [80, 160, 240, 320, 400]
    (samples,) = (one["value"] for one in found if one["key"] == "train_samples")
    seconds = (record.timing.stop_ns - record.timing.start_ns) / 1e9
    assert samples * 256 / seconds == pytest.approx(record.result.tokens_per_second)
    for one in found:
        if one["key"] == "tracked_stats":
            assert one["value"]["throughput"] == pytest.approx(
                2048 / one["value"]["step_time"], rel=1e-9
            )


def test_figures_come_with_their_unit_and_interval() -> None:
    record = make_record(3)
    found = {one["key"]: one for one in parsed(record)}
    rate = found["llmb_tokens_per_second"]
    assert rate["value"] == record.result.tokens_per_second
    assert rate["metadata"]["ci95"] == list(record.result.ci95)
    assert rate["metadata"]["unit"] == "tokens/s"
    assert found["llmb_verdict"]["value"] == "UNVERIFIED"
    assert "llmb_effective_precision" not in found, "what was not observed is not said"


def test_it_passes_for_no_submission_to_mlperf() -> None:
    keys = {one["key"] for one in parsed(make_record(3))}
    assert not keys & ABSENT
    (name,) = (
        one["value"] for one in parsed(make_record(3)) if one["key"] == "submission_benchmark"
    )
    assert name == "llmb llama-1.4b train"


def test_a_date_that_is_none_is_the_beginning_of_time() -> None:
    record = record_of(noise(50, seed=1), edit=lambda d: d.update(created_utc="soon"))
    assert parsed(record)[0]["time_ms"] == 0.0


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "result_0.txt"
    record = edited(make_record(3), hostile)
    path.write_text("".join(f"{line}\n" for line in mllog.lines(run_of(record))))
    return path


@pytest.mark.parametrize("ruleset", RULESETS)
def test_mlperfs_own_parsers_read_every_line(log, ruleset) -> None:
    parser = needs.module("mlperf_logging.compliance_checker.mlp_parser")
    lines, errors = parser.parse_file(str(log), ruleset=ruleset)
    assert errors == []
    assert [line.key for line in lines] == [one["key"] for one in parsed(make_record(3))]
    assert "forged" not in {line.key for line in lines}


@pytest.mark.parametrize("ruleset", RULESETS[2:])
def test_mlperfs_own_checker_finds_nothing_beyond_what_a_throughput_run_has_not(
    log, ruleset, tmp_path
) -> None:
    compliance = needs.module("mlperf_logging.compliance_checker.mlp_compliance")
    import yaml

    rules = Path(compliance.__file__).parent / f"training_{ruleset}" / "common.yaml"
    every = yaml.load(rules.read_text(), Loader=yaml.BaseLoader)
    left = [rule for rule in every if rule.get("KEY", {}).get("NAME") not in ABSENT]
    assert len(every) - len(ABSENT) <= len(left) < len(every)
    # What the division "closed" sets: minutes that initialisation may take.
    left[0]["BEGIN"]["CODE"] += "s['compile_time_mins'] = 30"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(left))
    checker = compliance.make_checker("training", ruleset, quiet=False, werror=True)
    assert checker.check_file(str(log), str(tmp_path / "rules.yaml"))
    assert not checker.check_file(str(log), f"training_{ruleset}/common.yaml")


@pytest.mark.parametrize("name", ["nemo-bert-base", "litgpt-forward", "litgpt-generation"])
def test_every_mode_and_family_has_a_log(name) -> None:
    found = parsed(of_workload(name))
    assert found[-1]["key"].startswith("llmb_")
    assert Counter(one["key"] for one in found)["run_start"] == 1
