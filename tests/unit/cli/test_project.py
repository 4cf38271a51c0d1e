"""``llmb project``: the documents' vectors on the command line, and a line for every misuse."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmb.cli import project
from llmb.errors import LlmbError
from llmb.projection.hardware_files import load
from llmb.records.canonical import pretty_bytes
from tests.builders import edited
from tests.unit.builders_workloads import of_workload

PLAN = [
    "node-hours",
    "--steps",
    "150000@512,50000@2048",
    "--target-global-batch",
    "4096",
    "--nodes",
    "2",
]
RATES = ["--rate", "512:1.18it/s@1024", "--rate", "2048:0.19it/s@1024"]


def call(*words):
    return CliRunner().invoke(project.command, [str(w) for w in words], catch_exceptions=False)


def data(*words):
    return json.loads(call(*words, "--json").output)


def refused(*words):
    with pytest.raises(LlmbError) as error:
        call(*words)
    assert "\n" not in str(error.value)
    return error.value.exit_code, str(error.value)


def figures(found):
    return {one["name"]: one["value"] for one in found["figures"]}


def written(tmp_path, record):
    path = tmp_path / f"{record.workload.name}.json"
    path.write_bytes(pretty_bytes(record))
    return path


def test_a_steps_time_gives_the_figure_of_merit_with_its_formula():
    found = call("step", "--workload", "alcf-1t", "--step-time", 54.9).output
    line = next(line for line in found.splitlines() if line.startswith("fom"))
    assert line.split()[:3] == ["fom", "8.98259e+15", "MAC/s"]
    assert "FOM = (6 s d^2 + s^2 d) b L / T" in line


def test_time_steps_and_tokens_a_second_say_the_same():
    name = ["step", "--workload", "nanotron-llama2-7b"]
    by_tokens = data(*name, "--tokens-per-second", 32200)
    seconds = figures(by_tokens)["step_time_s"]
    assert figures(data(*name, "--step-time", seconds)) == pytest.approx(figures(by_tokens))
    again = figures(data(*name, "--iterations-per-second", 1 / seconds))
    assert again == pytest.approx(figures(by_tokens))
    assert round(again["gemm_full, per device"]) == 185


def test_a_peak_gives_mfu():
    found = data(
        *("step", "--workload", "nanotron-llama2-7b"),
        *("--tokens-per-second", 32200, "--peak-tflops", 312),
    )
    assert figures(found)["MFU by gemm_full"] == pytest.approx(59.45, abs=0.01)


def test_a_measured_run_gives_the_metrics_in_its_record(tmp_path):
    record = of_workload("alcf-7b", batch_size=32)
    found = figures(data("step", "--from", written(tmp_path, record)))
    stored = {metric.name: metric.value for metric in record.result.metrics}
    assert found["fom"] == pytest.approx(stored["fom"])
    assert found["12 x FOM, per device"] == pytest.approx(stored["tflops_per_device"])
    assert found["gemm_full, per device"] == pytest.approx(stored["tflops_per_device_gemm_full"])


def test_node_hours_are_the_documents_arithmetic_and_contradictions_are_told():
    found = data(*PLAN, *RATES, "--rate", "512:1167samples/s")
    hours = [stage["node_hours_per_100k_steps"] for stage in found["stages"]]
    assert hours == pytest.approx([188.3, 1169.6], abs=0.05)
    assert found["node_hours"] == pytest.approx(867.3, abs=0.05)
    assert "more than rounding" in found["notes"][0]
    text = call(*PLAN, *RATES).output
    assert "867.281 node-hours on 2 nodes, steps of 4,096 sequences" in text
    assert "note" not in text


def test_node_hours_take_rates_from_measured_runs(tmp_path):
    short = written(tmp_path, of_workload("nemo-bert-base", batch_size=128))
    record = json.loads(short.read_bytes())
    hours = {m["name"]: m["value"] for m in record["result"]["metrics"]}
    found = data(
        "node-hours", "--steps", "100000@512", "--target-global-batch", 4096, "--from", short
    )
    assert found["nodes"] == 1
    assert found["node_hours"] == pytest.approx(hours["node_hours_per_100k_steps"])


def test_the_seed_model_gives_the_1t_vector_and_says_what_is_wrong_with_it():
    words = ["seed", "--workload", "alcf-1t"]
    found = data(*words, "--alpha", "169TFLOP/s", "--beta", "44.4GB/s")
    assert figures(found)["compute_s"] == pytest.approx(45.59, abs=0.005)
    assert figures(found)["communication_s"] == pytest.approx(9.29, abs=0.005)
    assert figures(found)["step_time_s"] == pytest.approx(54.9, abs=0.05)
    assert len(found["notes"]) == 4
    halved = data(*words, "--alpha", "169TFLOP/s", "--beta", "44.4GB/s", "--world-size", 1536)
    assert figures(halved)["compute_s"] == pytest.approx(45.59, abs=0.005), "two replicas"


def test_a_users_own_file_is_a_workload(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"family": "llama", "hidden_size": 512}')
    words = ["step", "--workload", path, "--step-time", 1, "--global-batch", 4, "--world-size", 2]
    assert figures(data(*words))["tokens_per_second"] == 4 * 256


T = ["step", "--workload", "alcf-1t", "--step-time", 1]
SEED = ["seed", "--workload", "alcf-1t"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["step"], "give one of --step-time"),
        (["step", "--step-time", 1], "name a --workload"),
        ([*T, "--tokens-per-second", 1], "give one of"),
        (["step", "--workload", "none", "--step-time", 1], "unknown workload 'none'"),
        (["step", "--workload", "llama-1.4b", "--step-time", 1], "--world-size"),
        ([*T, "--world-size", 7], "--global-batch"),
        (["step", "--workload", "litgpt-forward", "--step-time", 1], "not trained"),
        (["step", "--from", "nowhere.json"], "cannot read 'nowhere.json'"),
        (["step", "--from", "nowhere.json", "--workload", "alcf-1t"], "is in the record of --from"),
        ([*PLAN], "no rate at sequence length 512"),
        ([*PLAN[:5], *RATES], "needs --nodes"),
        (["node-hours", "--steps", "x", *PLAN[3:], *RATES], "STEPS@LENGTH"),
        ([*PLAN, "--rate", "512"], "LENGTH:RATEit/s"),
        ([*SEED, "--alpha", "169e12", "--beta", "1e-12"], "--alpha 169e12"),
        ([*SEED, "--alpha", "1e-12", "--beta", "0", "--tp", 7], "does not divide 768"),
    ],
)
def test_what_cannot_be_computed_is_one_line_and_exit_code_2(words, says):
    code, message = refused(*words)
    assert says in message
    assert code == 2


def test_sizes_beyond_numbers_and_hostile_records_are_one_line(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"family": "llama", "hidden_size": 1' + "0" * 300 + "}")
    words = ["step", "--workload", path, "--step-time", 1, "--global-batch", 4, "--world-size", 2]
    assert "it must be at most 2147483647" in refused(*words)[1]
    broken = tmp_path / "record.json"
    broken.write_text("{}")
    assert refused("step", "--from", broken)[0] == 6
    empty = edited(of_workload("alcf-7b"), lambda data: data["timing"].update(stop_ns=0))
    assert refused("step", "--from", written(tmp_path, empty))[0] == 6


# -- of a job ------------------------------------------------------------------------------------


def test_a_job_on_hardware_is_projected_part_by_part_with_its_expected_error():
    words = (
        "job",
        "--workload",
        "alcf-1t",
        "--hardware",
        "aurora",
        "--recompute",
        "full",
        "--zero",
        1,
        "--stored",
        "megatron",
    )
    found = data(*words, "--tokens", 1e12)
    assert sum(found["parts"].values()) == pytest.approx(figures(found)["step_time_s"])
    assert (found["layout"]["tp"], found["layout"]["pp"]) == (12, 64)
    assert found["memory"]["total"] < found["hardware"]["memory_bytes"]
    assert figures(found)["node_hours"] == pytest.approx(figures(found)["days"] * 24 * 64)
    assert figures(found)["HFU"] > figures(found)["MFU by gemm_full"]
    shown = call(*words).output
    assert "fits into 64 GB" in shown
    assert f"expected error {found['expected_error_percent']:g} %" in shown
    assert "worst row" in shown


def test_a_search_shows_the_front_and_why_others_lose():
    words = ("search", "--workload", "llama-3.1-8b", "--hardware", "h100", "--world-size", 64)
    found = data(*words, "--global-batch", 512)
    layouts = found["search"]["layouts"]
    assert layouts[0]["slower_percent"] == 0
    assert not layouts[0]["why"]
    assert all(one["why"] for one in layouts[1:] if one["slower_percent"] > 1)
    assert found["search"]["tried"] > len(layouts)
    shown = call(*words, "--global-batch", 512).output
    assert "layouts tried" in shown


def test_a_figure_is_drawn_and_the_same_twice(tmp_path):
    words = ("job", "--workload", "alcf-1t", "--hardware", "aurora", "--figure")
    for name in ("a.svg", "b.svg"):
        assert f"figure: {tmp_path / name}" in call(*words, tmp_path / name).output
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    code, said = refused(*words, tmp_path / "a.pdf")
    assert code == 2
    assert "must end in .svg or .png" in said


def test_a_measured_run_calibrates_the_projection(tmp_path):
    path = written(tmp_path, of_workload("llama-1.4b"))
    words = ("job", "--workload", "alcf-1t", "--hardware", "h100", "--world-size", 768)
    plain, found = data(*words), data(*words, "--from", path)
    assert found["constants"]["products"] != plain["constants"]["products"]
    assert any("tokens/s measured" in note for note in found["notes"])
    of_other = ("job", "--workload", "alcf-1t", "--hardware", "aurora")
    said = [note for note in data(*of_other)["notes"] if "no published row is of aurora" in note]
    assert said
    assert not any("no published row" in note for note in plain["notes"])
    beyond = written(tmp_path, of_workload("alcf-1t"))
    code, said = refused(*words, "--from", beyond)
    assert code == 2
    assert "give the hardware the run was on" in said


UNTRAINED = ("--workload", "litgpt-forward", "--world-size", 8, "--global-batch", 80)
UNSLICED = ("--tp", 1, "--world-size", 64, "--global-batch", 64)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--hardware", "h1000"), "--hardware h1000: unknown"),
        (
            ("--hardware", "h100", "--tp", 5, "--world-size", 320, "--global-batch", 64),
            "does not divide",
        ),
        (("--hardware", "h100", "--tp", 12, "--world-size", 770), "does not divide 770 devices"),
        (("--hardware", "h100", "--from", "nowhere"), "cannot read 'nowhere'"),
        (("--hardware", "nowhere.json"), "nowhere.json: cannot be read"),
        (
            ("--hardware", "h100", *UNSLICED, "--sequence-parallel"),
            "--sequence-parallel is for ranks",
        ),
        (
            ("--hardware", "h100", *UNSLICED, "--overlap-tp"),
            "--overlap-tp is for ranks",
        ),
        (("--hardware", "h100", "--virtual-stages", 3), "does not divide the 128 layers"),
        (
            ("--hardware", "h100", "--world-size", 1536, "--global-batch", 7),
            "7 sequences are not so many micro-batches",
        ),
        (("--hardware", "h100", "--figure", "nowhere/a.png"), "cannot be written"),
        (("--hardware", "h100", *UNTRAINED), "'litgpt-forward' is not trained"),
    ],
)
def test_what_does_not_go_with_a_job_is_one_line(words, says):
    code, said = refused("job", "--workload", "alcf-1t", *words)
    assert code == 2
    assert says in said


@pytest.mark.parametrize(
    "words",
    [
        *(("--world-size", 0), ("--global-batch", -1), ("--tp", "two"), ("--zero", 4)),
        ("--tokens", "nan"),
    ],
)
def test_a_value_out_of_range_is_a_usage_error_that_names_its_option(words):
    found = call("job", "--workload", "alcf-1t", "--hardware", "h100", *words)
    assert found.exit_code == 2
    assert words[0] in found.output


def test_a_machines_own_file_goes_as_far_as_what_was_measured(tmp_path):
    path = tmp_path / "mine.json"
    fields = load("h100").model_dump()
    path.write_text(json.dumps({**fields, "network_bytes_per_second": None}))
    words = ("--workload", "llama-1.4b", "--hardware", path, "--global-batch", 64)
    job = ("job", *words)
    assert figures(data(*job, "--world-size", 8))["step_time_s"] > 0
    code, said = refused(*job, "--world-size", 16)
    assert code == 2
    assert "network_bytes_per_second is not known" in said
    assert refused("search", *words, "--world-size", 64)[0] == 2
    drawn = call(*job, "--world-size", 4, "--figure", tmp_path / "a.svg")
    assert drawn.exit_code == 0, "with more replicas, as far as a node goes"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--workload", "alcf-1t", "--step-time", "54.9"), "step"),
        ((*PLAN[1:], *RATES), "node-hours"),
        (("--workload", "alcf-1t", "--hardware", "aurora", "--zero", "1"), "job"),
        (
            (
                *("--workload", "llama-3.1-8b", "--hardware", "h100", "--world-size", "8"),
                *("--search", "--global-batch", "64"),
            ),
            "search",
        ),
        (
            (
                *("--workload", "alcf-1t", "--model", "seed", "--alpha", "169TFLOP/s"),
                *("--beta", "44.4GB/s"),
            ),
            "seed",
        ),
    ],
)
def test_an_old_command_line_works_and_says_what_it_is_called_now(words, name):
    old = CliRunner().invoke(project.command, words, catch_exceptions=False)
    left = [word for word in words if word not in ("--search", "--model", "seed")]
    new = CliRunner().invoke(project.command, [name, *left], catch_exceptions=False)
    assert old.stdout == new.stdout != ""
    assert f"this is `llmb project {name}` now" in old.stderr
    assert not new.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("step", "--workload", "alcf-1t", "--step-time", "1", "--nodes", "2"),
        ("job", "--workload", "alcf-1t", "--hardware", "h100", "--step-time", "3"),
        ("search", "--workload", "alcf-1t", "--hardware", "h100", "--tp", "8"),
        ("seed", "--workload", "alcf-1t", "--alpha", "1e-12"),
    ],
)
def test_an_option_of_another_command_and_a_missing_one_are_refused(words):
    assert call(*words).exit_code == 2


def test_a_job_that_does_not_fit_says_so_first():
    words = ("job", "--workload", "alcf-1t", "--hardware", "h100", "--world-size", "768")
    shown = call(*words).output.splitlines()
    assert shown[0].startswith("does not fit: the fullest rank needs ")
    assert shown[0].endswith(" GB, a device has 80 GB")
