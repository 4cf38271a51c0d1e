"""A run stands in the row whose settings it has, beside what was published, or in its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb.errors import BundleRefusedError
from llmb.report.document import report
from llmb.submission.runs import run_of, settings_of
from llmb.workloads import WORKLOADS
from llmb.workloads.published import documents
from tests.builders import edited
from tests.unit.builders_workloads import of_workload


def run(name, run_id="a", change=lambda data: None, **given):
    """Return a run of workload ``name`` with single precision facts changed by ``change``."""
    record = of_workload(name, **given)

    def all_(data):
        data["run_id"] = run_id * 32
        data["config"]["mixed_precision"] = WORKLOADS[name].recipe.mixed_precision
        data["config"]["plugin_options"] = data["plugin"]["options"] = {}
        change(data)

    return run_of(edited(record, all_))


def sections(document, *runs, debug=False):
    found = report(document, documents()[document], runs, debug=debug)
    return {section.title: section for section in found.sections}, found.notes


def measured(section):
    """Return label -> measured figures of the rows that a run stands in."""
    return {line.labels[0]: line.measured for line in section.lines if line.run is not None}


def test_without_runs_every_published_row_is_there_and_nothing_is_measured() -> None:
    for name, document in documents().items():
        found, notes = sections(name)
        assert [len(found[table.title].lines) for table in document.tables] == [
            len(table.rows) for table in document.tables
        ]
        lines = [line for section in found.values() for line in section.lines]
        assert {value for line in lines for value in line.measured} == {None}
        assert notes == ()


def test_every_published_figure_of_litgpt_stands_under_its_key() -> None:
    found, _ = sections("litgpt")
    assert [c.key for c in found["1 forward"].columns] == ["best_s", "peak_memory_gb"]
    assert found["1 forward"].lines[0].published == (1.18, 17.3)


def test_a_forward_run_stands_beside_the_published_eager_row() -> None:
    one = run("litgpt-forward", batch_size=10)
    found, _ = sections("litgpt", one)
    values = measured(found["1 forward"])
    assert values.keys() == {"Eager"}
    assert values["Eager"] == (one.values["best_s"], one.values["peak_memory_gb"])
    assert one.values["peak_memory_gb"] == one.record.timing.peak_memory_bytes / 1e9


def compiled(data):
    data["config"]["plugin_options"] = {"compile": "reduce-overhead"}


def test_a_model_that_a_plugin_compiles_is_no_eager_one() -> None:
    found, _ = sections("litgpt", run("litgpt-forward", change=compiled, batch_size=10))
    assert measured(found["1 forward"]).keys() == {"Inductor"}


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        (lambda data: None, {"batch_size": 1}, "batch 1"),
        (lambda data: data["precision"].update(declared="FP32"), {"batch_size": 10}, "FP32"),
        (
            lambda data: data["config"]["parallelism"].update(tp=2),
            {"batch_size": 10},
            "2 devices",
        ),
        (
            lambda data: data["config"].update(mixed_precision=True),
            {"batch_size": 10},
            "mixed precision",
        ),
    ],
)
def test_a_run_of_other_settings_stands_in_a_row_of_its_own(change, given, words) -> None:
    found, _ = sections("litgpt", run("litgpt-forward", change=change, **given))
    assert measured(found["1 forward"]).keys() == {words}
    assert found["1 forward"].lines[-1].published == (None, None)


def test_one_device_does_not_stand_in_a_row_of_eight() -> None:
    found, _ = sections("nemo", run("nemo-bert-base", batch_size=1024))
    assert measured(found["BERT-base, 512"]).keys() == {"1 device"}


def test_of_several_runs_of_a_row_the_fastest_is_shown_and_all_are_counted() -> None:
    def slower(data):
        timing = data["timing"]
        timing["stop_ns"] += 10**9
        timing["fence_ns"][-1] += 10**9

    runs = [run("gpt2-1.5b", "a", slower), run("gpt2-1.5b", "b"), run("gpt2-1.5b", "c", slower)]
    found, _ = sections("llm-train-bench", *runs)
    line = found["gpt2-1.5b"].lines[0]
    assert line.labels == ("single", "MP")
    assert (line.run, line.count) == (runs[1], 3)
    assert line.published == (350, 35)
    assert line.measured == (runs[1].values["tflops_per_device"], runs[1].values["mfu_percent"])


def debug(data):
    data["class"] = "debug"
    data["config"]["shape_overrides"] = {"sequence_length": 256}


def test_debug_runs_are_left_out_and_with_debug_behind_every_official_one() -> None:
    fast = run("gpt2-1.5b", "a", debug)
    found, notes = sections("llm-train-bench", fast)
    assert measured(found["gpt2-1.5b"]) == {}
    assert notes == ("1 run left out: debug, --debug shows them",)
    found, notes = sections("llm-train-bench", fast, debug=True)
    assert measured(found["gpt2-1.5b"]).keys() == {"sizes of its own"}
    assert notes == ()
    short = run("gpt2-1.5b", "b", lambda data: data.update({"class": "debug"}))
    official = run("gpt2-1.5b", "c")
    found, _ = sections("llm-train-bench", short, official, debug=True)
    assert found["gpt2-1.5b"].lines[0].run is official


def test_a_run_whose_audit_is_invalid_is_left_out_and_told() -> None:
    invalid = run("gpt2-1.5b", "a", lambda data: data["audit"].update(verdict="INVALID"))
    found, notes = sections("llm-train-bench", invalid, debug=True)
    assert measured(found["gpt2-1.5b"]) == {}
    assert notes == ("1 run left out: the audit is INVALID",)


def test_a_workload_without_a_published_figure_has_a_table_once_it_is_measured() -> None:
    assert "gpt2-125m" not in sections("llm-train-bench")[0]
    found, _ = sections("llm-train-bench", run("gpt2-125m"))
    assert measured(found["gpt2-125m"]).keys() == {"eager, BF16"}
    assert found["gpt2-125m"].lines[0].published == (None, None)


def test_a_users_own_workload_is_in_no_documents_table() -> None:
    own = {"family": "gpt2", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    one = run_of(of_workload("mine", definition=own))
    for name in documents():
        found, _ = sections(name, one)
        assert not any(measured(section) for section in found.values())


def test_the_1t_documents_table_is_time_figure_of_merit_and_flops() -> None:
    one = run("alcf-7b", batch_size=32)
    found, _ = sections("alcf", one)
    names = ("mean_step_time_s", "fom", "tflops_per_device")
    assert measured(found["alcf-7b"]) == {"alcf-7b": tuple(one.values[name] for name in names)}
    assert "FOM = (6 s d^2 + s^2 d) b L / T" in found["alcf-7b"].notes[0]


def test_rows_that_contradict_themselves_are_told_below_the_table() -> None:
    found, _ = sections("nemo")
    assert any(
        "Samples/s 1,167 and Iter/s 1.18 disagree" in n for n in found["BERT-base, 512"].notes
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["timing"].update(stop_ns=0),
        lambda data: data["timing"].update(fence_steps=[1]),
        lambda data: data["workload"].update(tokens_per_step=0),
        lambda data: data["config"].update(shape_overrides={"hidden_size": 3}),
        lambda data: data["config"].update(workload="none"),
        lambda data: data["result"]["mfu"].update(peak_flops=0.0),
    ],
)
def test_a_record_of_impossible_numbers_is_one_line(change) -> None:
    with pytest.raises(BundleRefusedError, match="no figures can be made") as error:
        run("gpt2-1.5b", change=change)
    assert "\n" not in str(error.value)


# -- settings that configurations are about to have -----------------------------------------------


class Later:
    """A configuration with fields that this version's has not."""

    def __init__(self, config, **fields):
        self._config = config
        self.__dict__.update(fields)

    def __getattr__(self, name):
        return getattr(self._config, name)


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"executor": "thunder", "dynamic": False}, ("static", "Thunder")),
        ({"executor": "thunder", "dynamic": True}, ("dynamic", "Thunder")),
        ({"executor": "eager", "dynamic": True}, ("dynamic", "Eager")),
        ({}, ("static", "Eager")),
    ],
)
def test_executor_and_dynamic_shapes_choose_table_and_row(fields, row) -> None:
    record = run("litgpt-train", batch_size=2).record
    settings = settings_of(Later(record.config, **fields), record)
    one = replace(run_of(record), settings=settings)
    found, _ = sections("litgpt", one)
    titles = {
        kind: f"Single-device training, {kind} shapes (45 iters)" for kind in ("static", "dynamic")
    }
    assert {kind: [*measured(found[title])] for kind, title in titles.items()} == {
        "static": [],
        "dynamic": [],
        row[0]: [row[1]],
    }


@pytest.mark.parametrize(("gathered_again", "stage"), [(False, "2"), (True, "3")])
def test_a_run_of_fsdp2_stands_in_the_row_of_its_zero_stage(gathered_again, stage) -> None:
    def sharded(data):
        mesh = {"dp_shard": 2, "reshard_after_forward": gathered_again}
        data["config"]["parallelism"].update(mesh)

    one = run("litgpt-fsdp", change=sharded, batch_size=2)
    title = "Multi-device training, static shapes (45 iters)"
    found, _ = sections("litgpt", one)
    rows = [line.labels[:2] for line in found[title].lines if line.run is not None]
    assert rows == [(stage, "Eager")]


def test_checkpointed_blocks_are_a_row_of_their_own() -> None:
    record = run("gpt2-1.5b").record
    settings = settings_of(Later(record.config, sac_freq="1/8"), record)
    found, _ = sections("llm-train-bench", replace(run_of(record), settings=settings))
    assert measured(found["gpt2-1.5b"]).keys() == {"1/8"}, "published with FSDP only"


def test_a_row_of_other_settings_has_as_many_labels_as_every_other_row() -> None:
    found, _ = sections("llm-train-bench", run("gpt2-1.5b", batch_size=3))
    table = found["gpt2-1.5b"]
    assert {len(line.labels) for line in table.lines} == {len(table.labels)} == {2}
