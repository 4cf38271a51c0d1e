"""``llmb run`` from the command line to the record, as a user meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import statistics
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llmb.audit.rules import RULES
from llmb.config import BF16, Mode, RunConfig
from llmb.history import file
from llmb.records.draws import Draws
from llmb.records.finding import Level
from llmb.records.run_record import RunRecord
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.supervision import stream
from tests import patience
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended, run

# -- the run directory and its record ---------------------------------------------------------


@pytest.mark.quick
def test_a_debug_run_ends_with_code_0_and_a_record_that_can_be_read_back(tiny_run: Ended) -> None:
    assert tiny_run.code == 0
    record = RunRecord.model_validate_json((tiny_run.directory / "record.json").read_bytes())
    assert record.result.tokens_per_second > 0
    assert record.timing.timed_steps == 20


@pytest.mark.quick
def test_a_finished_run_is_one_line_of_the_history_beside_its_directory(tiny_run: Ended) -> None:
    (line,) = file.read(tiny_run.output / file.FILE).lines
    result = tiny_run.record["result"]
    assert (line.run, line.run_id) == (tiny_run.directory.name, tiny_run.record["run_id"])
    assert line.tokens_per_second == result["tokens_per_second"]
    assert line.verdict.value == tiny_run.record["audit"]["verdict"]


@pytest.mark.quick
def test_the_run_directory_holds_every_documented_file_and_nothing_else(tiny_run: Ended) -> None:
    found = {path.name for path in tiny_run.directory.iterdir()}
    files = {"record.json", "audit.json", "system.json", "config.toml", "log.txt", "report.html"}
    diffs = {"model.diff", "settings.diff", "sources.diff"}
    assert found == files | diffs | {"plugin", "evidence"}
    evidence = {path.name for path in (tiny_run.directory / "evidence" / "repeat-0").iterdir()}
    worker = {"optimizer", "weights", "model", "settings", "plugin", "namespace", "surroundings"}
    judges = {"probed", "pairs", "steps", "ledger", "pristine", "honest-namespace", "repeat"}
    arrays = {"fences", "gradients", "steps", "ledger"}
    arrays |= {"honest", "replay", "replayed", "reference", "judged"}
    assert evidence == {
        *(f"{name}.json" for name in worker | judges),
        *(f"{name}.safetensors" for name in arrays),
    }


@pytest.mark.quick
def test_whole_weights_are_not_left_behind(tiny_run: Ended) -> None:
    files = [path for path in tiny_run.directory.rglob("*") if path.is_file()]
    weights = 2 * tiny_run.record["workload"]["parameters"]
    assert sum(path.stat().st_size for path in files) < weights / 2
    assert not list(tiny_run.directory.rglob("*weights.safetensors"))


@pytest.mark.quick
def test_the_run_directory_is_named_after_time_workload_precision_and_plugin(
    tiny_run: Ended,
) -> None:
    assert re.fullmatch(r"\d{8}T\d{6}Z-llama-1\.4b-BF16-cpu", tiny_run.directory.name)


@pytest.mark.quick
def test_audit_and_system_are_the_parts_of_the_record_of_that_name(tiny_run: Ended) -> None:
    for part in ("audit", "system"):
        alone = json.loads((tiny_run.directory / f"{part}.json").read_bytes())
        assert alone == tiny_run.record[part]


@pytest.mark.quick
def test_a_run_at_changed_shapes_is_debug_and_every_change_is_a_waiver(tiny_run: Ended) -> None:
    record = tiny_run.record
    assert record["class"] == "debug"
    flags = {w.split()[0] for w in record["waivers"] if w.startswith("--")}
    shapes = {flag.partition("=")[0] for flag in harness.TINY}
    assert flags == shapes | {"--timed-steps"}
    (window,) = (w for w in record["waivers"] if not w.startswith("--"))
    assert window.startswith("a window of")


@pytest.mark.quick
def test_an_honest_run_is_consistent_and_every_blocking_rule_was_observed(
    tiny_run: Ended,
) -> None:
    audit = tiny_run.record["audit"]
    blocking = {f["id"]: f["status"] for f in audit["findings"] if f["level"] == "block"}
    assert {rule.id for rule in RULES if rule.level is Level.BLOCK} == set(blocking)
    assert set(blocking.values()) == {"pass"}, blocking
    assert not [f for f in audit["findings"] if f["status"] in ("flag", "fail")]
    assert audit["verdict"] == "CONSISTENT"


@pytest.mark.quick
def test_the_precision_of_an_honest_run_was_measured(tiny_run: Ended) -> None:
    precision = tiny_run.record["precision"]
    assert (precision["declared"], precision["effective"]) == ("BF16", "BF16")
    assert precision["how"] == "measured"
    assert all(value > 5 for value in precision["bits"].values())


@pytest.mark.quick
def test_a_debug_run_is_audited_quickly_and_its_window_holds_the_audited_step(
    tiny_run: Ended,
) -> None:
    assert tiny_run.record["config"]["audit"] == "quick"
    timing = tiny_run.record["timing"]
    begin, end = timing["warmup_steps"], timing["warmup_steps"] + timing["timed_steps"]
    early, step = timing["audited_steps"]
    assert early < begin <= step < end


@pytest.mark.quick
def test_a_run_with_the_audit_switched_off_is_unverified_says_so_and_is_no_official_run(
    two_repeats: Ended,
) -> None:
    record = two_repeats.record
    assert record["audit"]["verdict"] == "UNVERIFIED"
    assert "--audit off" in record["waivers"]
    assert any("--audit off" in warning for warning in record["warnings"])
    assert record["timing"]["audited_steps"] == []
    names = {path.name for path in (two_repeats.directory / "evidence/repeat-0").iterdir()}
    assert not {"gradients.safetensors", "reference.safetensors"} & names


@pytest.mark.quick
def test_throughput_is_tokens_between_start_and_stop_over_the_stamps(tiny_run: Ended) -> None:
    timing, result = tiny_run.record["timing"], tiny_run.record["result"]
    seconds = (timing["stop_ns"] - timing["start_ns"]) / 1e9
    tokens = 16 * timing["timed_steps"]
    assert result["tokens_per_second"] == pytest.approx(tokens / seconds, rel=1e-12)
    assert timing["start_ns"] in timing["fence_ns"]
    assert timing["stop_ns"] == timing["fence_ns"][-1]


@pytest.mark.quick
def test_the_log_tells_the_phases_and_the_end(tiny_run: Ended) -> None:
    assert "starting worker" in tiny_run.log
    assert tiny_run.log.splitlines()[-1].startswith("finished: ")


# -- what is printed --------------------------------------------------------------------------


@pytest.mark.quick
def test_json_prints_exactly_the_record_on_stdout(tiny_run: Ended) -> None:
    assert tiny_run.stdout.encode() == (tiny_run.directory / "record.json").read_bytes()


@pytest.mark.quick
def test_progress_is_plain_lines_on_stderr_without_a_terminal(tiny_run: Ended) -> None:
    lines = tiny_run.stderr.splitlines()
    assert all(line.startswith("llmb: ") for line in lines)
    assert "\x1b" not in tiny_run.stderr
    said = [line.removeprefix("llmb: ").partition(" (")[0] for line in lines]
    assert all(re.search(r" \(\d+ %, .+ left\)$", line) for line in lines)
    order = ["asking the plugins", "starting worker", "timing: post-processing", "timing: training"]
    assert [line for line in said if line in order] == order


def test_the_debug_preset_runs_and_quiet_shows_no_progress(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--preset=debug", quiet=True)
    assert (done.code, done.stderr) == (0, "")
    assert "DEBUG, not comparable" in done.stdout
    assert str(done.directory) in done.stdout.replace("\n", "")
    config = done.record["config"]
    assert (config["batch_size"], config["timed_steps"]) == (2, 20)


@pytest.mark.quick
def test_the_flags_of_the_source_document_are_obeyed(tiny_run: Ended) -> None:
    config = tiny_run.record["config"]
    flags = (config["batch_size"], config["precision"]["name"], config["device"])
    assert flags == (1, "BF16", "cpu")


@pytest.fixture(scope="session")
def terminal_run(once: Once) -> Ended:
    """A run on a terminal, without seed or plugin, where a vendor's broken plugin is installed."""

    def run_it(folder: Path) -> Ended:
        broken = harness.plugin(folder / "plugins", "odd", "import llmb_odd_missing")
        flags = ("--precision=FP16", *harness.TINY_RUN, harness.UNAUDITED)
        flags = (*flags, "--output-dir", folder / "out")
        master, slave = pty.openpty()
        env = harness.environment(broken, TERM="xterm")
        env.pop("NO_COLOR")
        process = subprocess.Popen(
            harness.llmb_command("run", *flags), env=env, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        shown, watch = b"", patience.Watch([process], output=folder / "out")
        while chunk := _read(master, watch):
            shown += chunk
            watch.look()
        os.close(master)
        return Ended(process.wait(), shown.decode(), "", folder / "out")

    return once("terminal-run", run_it)


def _read(terminal: int, watch: patience.Watch) -> bytes:
    while not select.select([terminal], [], [], 1.0)[0]:
        watch.look()
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way of saying that nobody holds the other end any more
        return b""


def test_a_terminal_gets_a_live_display_and_is_left_with_the_summary(terminal_run: Ended) -> None:
    assert terminal_run.code == 0
    assert "\x1b[" in terminal_run.stdout
    assert "timing: training" in terminal_run.stdout
    assert "run directory:" in terminal_run.stdout


def test_a_run_on_the_cpu_says_which_installed_plugin_could_not_be_used(
    terminal_run: Ended,
) -> None:
    assert terminal_run.record["plugin"]["name"] == "cpu"
    note = "plugin 'odd' is not used: "
    assert note in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal_run.stdout)
    (line,) = (line for line in terminal_run.log.splitlines() if line.startswith(note))
    assert "llmb_odd_missing" in line


@pytest.fixture(scope="session")
def peculiar_run(once: Once) -> Ended:
    """A run with whatever is odd and allowed: prints, torch's newer switches, a long TMPDIR."""
    source = """
    print("import speaks")
    os.write(1, b"import writes to descriptor 1\\n")
    @hookimpl
    def llmb_set_environment(config):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    @hookimpl
    def llmb_post_process_model(model):
        print("post-processing speaks")
        os.system("echo a child of the plugin speaks")
    """

    def run_it(folder: Path) -> Ended:
        scratch = folder / ("t" * 100)  # a socket's path has at most 107 bytes
        scratch.mkdir()
        flags = ("--json", harness.UNAUDITED)
        return harness.run_plugin(folder, source, *flags, TMPDIR=str(scratch))

    return once("peculiar-run", run_it)


def test_a_plugin_that_prints_does_not_disturb_the_json_on_stdout(peculiar_run: Ended) -> None:
    assert json.loads(peculiar_run.stdout)["plugin"]["name"] == "odd"
    assert "post-processing speaks" in peculiar_run.log
    assert "a child of the plugin speaks" in peculiar_run.log


def test_a_plugin_may_use_torchs_newer_precision_switches(peculiar_run: Ended) -> None:
    assert "fp32_precision" in (peculiar_run.directory / "settings.diff").read_text()


def test_the_temporary_folder_may_have_a_path_too_long_for_a_socket(peculiar_run: Ended) -> None:
    assert (peculiar_run.code, peculiar_run.said) == (0, [])


def test_plugin_list_prints_json_although_a_plugin_prints(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path, "odd", 'print("import speaks")')
    done = harness.call("plugin", "list", "--json", env=harness.environment(folder))
    assert [offer["plugin"] for offer in json.loads(done.stdout)] == ["odd", "cpu", "generic"]


# -- repeats, seeds, reproduction -------------------------------------------------------------


@pytest.fixture(scope="session")
def two_repeats(once: Once) -> Ended:
    """A run of two repeats without a seed."""
    flags = ("--precision=FP16", *harness.TINY_RUN, "--repeats=2", harness.UNAUDITED)
    return once("two-repeats", lambda folder: run(folder / "out", *flags))


def test_two_repeats_keep_both_raw_timings_and_the_headline_is_one_of_them(
    two_repeats: Ended,
) -> None:
    done = two_repeats
    timing, result = done.record["timing"], done.record["result"]
    repeats = timing["repeats"]
    assert len(repeats) == 2
    assert repeats[0]["fence_ns"] != repeats[1]["fence_ns"]
    rates = [16 * 20 / (r["stop_ns"] - r["start_ns"]) * 1e9 for r in repeats]
    assert result["tokens_per_second"] == pytest.approx(statistics.median_low(rates))
    assert timing["stop_ns"] == repeats[timing["headline_repeat"]]["stop_ns"]
    assert sorted(path.name for path in (done.directory / "evidence").iterdir()) == [
        "repeat-0",
        "repeat-1",
    ]
    first, second = (done.evidence("weights.json", n)["pristine"] for n in (0, 1))
    assert first == second, "both repeats start from the same model"
    # Not the losses: FP16 has so few values near 10 that two honest ones are often equal.
    fences = [(done.directory / f"evidence/repeat-{n}/fences.safetensors") for n in (0, 1)]
    assert fences[0].read_bytes() != fences[1].read_bytes(), "on other tokens"


@pytest.fixture(scope="session")
def repeated(two_repeats: Ended, once: Once) -> Ended:
    """The run again, from the command that ``llmb show --command`` gives, and with its nonce."""
    shown = harness.call("show", two_repeats.directory, "--command")
    words = shlex.split(shown.stdout)
    assert words[:2] == ["llmb", "run"]
    nonce = two_repeats.record["timing"]["repeats"][0]["nonce"]
    return once("repeated", lambda folder: run(folder / "out", *words[2:], f"--nonce={nonce}"))


def test_the_shown_command_gives_the_same_configuration(
    repeated: Ended, two_repeats: Ended
) -> None:
    assert {**repeated.record["config"], "nonce": None} == two_repeats.record["config"]


def test_a_run_that_is_done_again_with_its_nonce_says_so_and_is_not_official(
    repeated: Ended,
) -> None:
    (said,) = (waiver for waiver in repeated.record["waivers"] if "--nonce" in waiver)
    assert "replayed" in said


def test_the_same_seed_and_nonce_give_the_same_weights_and_losses(
    repeated: Ended, two_repeats: Ended
) -> None:
    assert repeated.evidence("weights.json") == two_repeats.evidence("weights.json")
    for repeat in (0, 1):
        one, two = (
            load_file(done.directory / f"evidence/repeat-{repeat}/fences.safetensors")
            for done in (repeated, two_repeats)
        )
        assert len(one["loss"]) >= 3
        for name in ("loss", "parameters"):
            assert torch.equal(one[name], two[name])


def test_without_a_seed_two_runs_have_other_seeds_and_weights(
    two_repeats: Ended, terminal_run: Ended
) -> None:
    one, two = two_repeats, terminal_run
    assert one.record["config"]["seed"] != two.record["config"]["seed"]
    digests = [
        {w["name"]: w["sha256"] for w in done.evidence("weights.json")["pristine"]}
        for done in (one, two)
    ]
    assert digests[0]["lm_head.weight"] != digests[1]["lm_head.weight"]


# -- the hidden window ------------------------------------------------------------------------


def config(seed: int, timed_steps: int) -> RunConfig:
    return RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin="cpu",
        plugin_options={},
        device="cpu",
        precision=BF16,
        batch_size=1,
        seed=seed,
        warmup_steps=1,
        timed_steps=timed_steps,
        repeats=1,
    )


def planned(nonce: str, timed_steps: int) -> stream.Window:
    """Return the window of a run with ``nonce``."""
    drawn = Draws(nonce, OFFICIAL_OPTIMIZER, ledger=True)
    return stream.plan_window(config(7, timed_steps), drawn)


def nonces(timed_steps: int) -> dict[int, str]:
    """Return one nonce for each place that START may have, by that place."""
    every = (f"{n:032x}" for n in range(64))
    return {planned(nonce, timed_steps).start: nonce for nonce in every}


@pytest.mark.quick
def test_start_has_two_places_and_the_nonce_says_which() -> None:
    assert sorted(nonces(50)) == [1, 11]


@pytest.mark.quick
@pytest.mark.parametrize("timed_steps", [20, 50, 55, 60])
def test_both_places_of_start_give_the_worker_the_same_fences(timed_steps: int) -> None:
    early, late = (planned(nonce, timed_steps) for nonce in nonces(timed_steps).values())
    steps = range(1, min(early.end, late.end) + 1)
    assert [early.is_fence(n) for n in steps] == [late.is_fence(n) for n in steps]


#: Writes down every message that the worker receives, and what has already been sent to it while
#: post-processing goes on.
WIRETAP = """
import gc, json, socket
from llmb.wire.channel import Channel

def write(**entry):
    with open(os.environ["WIRETAP"], "a") as file:
        file.write(json.dumps(entry) + "\\n")

receive = Channel.receive
def tapped(self, timeout_s=None):
    message = receive(self, timeout_s)
    if message is not None and "llmb.processes.worker" in sys.orig_argv:
        write(message=message.model_dump(mode="json"))
    return message
Channel.receive = tapped

@hookimpl
def llmb_post_process_model(model, config):
    write(config=config.model_dump(mode="json"))
    time.sleep(0.5)
    (channel,) = (o for o in gc.get_objects() if isinstance(o, Channel))
    waiting = bytes(channel._buffer)
    try:
        waiting += channel._socket.recv(2**20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    write(waiting=waiting.decode())
"""


@pytest.fixture(scope="session")
def tapped(once: Once) -> dict[int, list[dict]]:
    """START -> what the worker was sent, for a run with each of the two places of START."""
    heard = {}
    for start, nonce in nonces(20).items():

        def listen(folder: Path, nonce: str = nonce) -> Ended:
            plugins = [harness.plugin(folder / "plugins", "odd", WIRETAP)]
            flags = (*harness.with_plugin("odd"), "--seed=7", f"--nonce={nonce}")
            tap = {"WIRETAP": str(folder / "tap")}
            return run(folder / "out", *flags, plugins=plugins, **tap)

        done = once(f"tap-{start}", listen)
        assert done.record["timing"]["warmup_steps"] == start
        lines = (done.output.parent / "tap").read_text().splitlines()
        heard[start] = [json.loads(line) for line in lines]
    return heard


def sent(heard: list[dict], *kinds: str) -> list[dict]:
    return [e["message"] for e in heard if e.get("message", {}).get("kind") in kinds]


def test_a_worker_is_sent_the_same_orders_wherever_the_window_lies(
    tapped: dict[int, list[dict]],
) -> None:
    early, late = (
        [(order["index"], order["fence"]) for order in sent(heard, "step")]
        for heard in tapped.values()
    )
    shorter = min(len(early), len(late))
    assert shorter > 21
    assert early[:shorter] == late[:shorter]


def test_a_worker_is_told_neither_start_nor_the_seed_nor_the_nonce_of_the_run(
    tapped: dict[int, list[dict]],
) -> None:
    # Two runs that differ in their nonce only: their workers are told the same.
    configs = [next(e["config"] for e in heard if "config" in e) for heard in tapped.values()]
    assert configs[0] == configs[1]
    assert configs[0]["seed"] != 7
    kinds = {e["message"]["kind"] for heard in tapped.values() for e in heard if "message" in e}
    assert kinds == {"step", "draw", "proceed", "audit", "keep"}, "after the work order"


def test_every_step_of_a_run_has_a_seed_of_its_own(tapped: dict[int, list[dict]]) -> None:
    for heard in tapped.values():
        seeds = [message["seed"] for message in sent(heard, "step", "audit")]
        assert len(set(seeds)) == len(seeds)


def test_every_step_is_answered_in_its_pause_and_the_end_is_not_told_before_stop(
    tapped: dict[int, list[dict]],
) -> None:
    for start, heard in tapped.items():
        said = sent(heard, "proceed", "audit", "keep")
        answers = [one for one in said if not one.get("stopped_ns")]  # the clock goes on
        last = [index for index, answer in enumerate(answers) if answer.get("last")]
        assert last == [len(answers) - 1]
        assert start + 20 < last[0] <= start + 24
        (asked,) = [i for i, a in enumerate(answers) if a["kind"] == "audit" and not a["last"]]
        assert start <= asked < start + 20


def test_no_seed_of_a_step_is_sent_before_post_processing_is_over(
    tapped: dict[int, list[dict]],
) -> None:
    for heard in tapped.values():
        (waiting,) = (entry["waiting"] for entry in heard if "waiting" in entry)
        assert '"step"' not in waiting


# -- the search for the batch size ------------------------------------------------------------


def test_the_batch_size_search_survives_a_worker_that_runs_out_of_memory(tmp_path: Path) -> None:
    source = """
    def before(calls, ids):
        if ids.shape[0] >= 2:
            torch.empty(2**50)
    @hookimpl
    def llmb_post_process_model(model):
        return Around(model, before)
    """
    done = harness.run_plugin(tmp_path, source, "--batch-size=auto", harness.UNAUDITED)
    assert (done.code, done.said) == (0, [])
    search = done.record["batch_size_search"]
    status = {trial["batch_size"]: trial["status"] for trial in search["trials"]}
    assert status == {1: "measured", 2: "out_of_memory"}
    assert search["best"] == done.record["config"]["batch_size"] == 1
    failed = search["trials"][-1]
    assert "allocate" in failed["message"]
    assert failed["tokens_per_second"] is None


# -- submission -------------------------------------------------------------------------------


@pytest.mark.quick
def test_package_submission_refuses_a_debug_run_and_writes_nothing(
    tiny_run: Ended, tmp_path: Path
) -> None:
    flags = ("--submitter=acme", "--system=box", "--output", tmp_path / "submissions")
    done = harness.call("package-submission", tiny_run.directory, *flags)
    assert (done.code, len(done.said)) == (6, 1)
    assert "debug run" in done.said[0]
    assert not (tmp_path / "submissions").exists()


@pytest.mark.quick
def test_show_summarises_the_run_directory_and_prints_its_record(tiny_run: Ended) -> None:
    summary = harness.call("show", tiny_run.directory)
    assert "DEBUG, not comparable" in summary.stdout
    assert f"audit: {tiny_run.record['audit']['verdict']}" in summary.stdout
    whole = harness.call("show", tiny_run.directory / "record.json", "--json")
    assert json.loads(whole.stdout) == tiny_run.record


def test_a_home_that_cannot_be_written_and_a_tmpdir_that_is_none_do_no_harm(tmp_path: Path) -> None:
    """Nothing can be made below /proc, not even by root."""
    folders = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/cache", "TMPDIR": "/proc"}
    flags = ("--plugin=cpu", "--preset=debug", "--precision=FP32", "--timed-steps=12")
    done = harness.run(tmp_path, *flags, *harness.TINY, **folders)
    assert done.code == 0, done.stderr
    assert done.record["audit"]["verdict"] == "CONSISTENT"
    report = harness.call("report", done.directory, env=harness.environment(**folders))
    assert report.code == 2, report.stderr
    assert "package-submission" in report.stderr
