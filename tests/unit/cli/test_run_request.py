"""What each option of ``llmb run`` asks for, and what options do not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from llmb import supervisor
from llmb.cli import run
from llmb.config import AuditMode, Mode, RunRequest
from llmb.errors import UsageError
from llmb.parallel import checks, launch
from llmb.supervision.sizing import USUAL_WITHIN_S

Ask = Callable[..., Any]


class AskedError(Exception):
    """Ends the command where a run would begin."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.given, self.more = given, more


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return what the supervisor would be asked for, or raise what the options are refused with."""

    def begin(*given: Any, **more: Any) -> Any:
        raise AskedError(*given, **more)

    def foresee(request: RunRequest, world_size: int) -> None:
        raise AskedError(request, world_size)

    monkeypatch.setattr(supervisor, "run", begin)
    monkeypatch.setattr(supervisor, "foresee", foresee)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def call(*options: str) -> Any:
        done = CliRunner().invoke(run.command, list(options), standalone_mode=False)
        if isinstance(done.exception, AskedError):
            return done.exception
        assert done.exception is not None, "nothing was asked for, and nothing refused"
        raise done.exception

    return call


def requested(ask: Ask, *options: str) -> RunRequest:
    found = ask(*options).given[0]
    assert isinstance(found, RunRequest)
    return found


NAMED = ("--workload", "llama-128m")


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (("--mode", "train"), "mode", Mode.TRAIN),
        (("--plugin", "fast"), "plugin", "fast"),
        (("-O", "threads=4", "-O", "x=a=b"), "plugin_options", {"threads": "4", "x": "a=b"}),
        (("--device", "fast:1"), "device", "fast:1"),
        (("--precision", "BF16"), "precision", "BF16"),
        (("--batch-size", "4"), "batch_size", 4),
        (("--batch-size", "auto"), "batch_size", "auto"),
        (("--micro-batch-size", "3", "--accumulate", "2"), "batch_size", 6),
        (("--accumulate", "2"), "accumulate", 2),
        (("--mixed-precision",), "mixed_precision", True),
        (("--no-mixed-precision",), "mixed_precision", False),
        (("--executor", "inductor"), "executor", "inductor"),
        (("--compile-mode", "max-autotune"), "compile_mode", "max-autotune"),
        (("--dynamic",), "dynamic", True),
        (("--static",), "dynamic", False),
        (("--sac-freq", "1/2"), "sac_freq", "1/2"),
        (("--scope", "step"), "generate_scope", "step"),
        (("--prompt-length", "5"), "prompt_length", 5),
        (("--new-tokens", "7"), "new_tokens", 7),
        (("--seed", "0"), "seed", 0),
        (("--seed", str(2**63 - 1)), "seed", 2**63 - 1),
        (("--warmup-steps", "9"), "warmup_steps", 9),
        (("--timed-steps", "60"), "timed_steps", 60),
        (("--repeats", "3"), "repeats", 3),
        (("--audit", "off"), "audit", AuditMode.OFF),
        (("--profile",), "profile", True),
        (("--rank-timeout", "7"), "rank_timeout_s", 7.0),
        (("--hidden-size", "64"), "shape_overrides", {"hidden_size": 64}),
        (("--sequence-length", "64"), "shape_overrides", {"sequence_length": 64}),
        (("--intermediate-size", "64"), "shape_overrides", {"intermediate_size": 64}),
        (("--num-hidden-layers", "2"), "shape_overrides", {"num_hidden_layers": 2}),
        (("--num-attention-heads", "2"), "shape_overrides", {"num_attention_heads": 2}),
    ],
    ids=str,
)
def test_each_option_asks_for_what_it_says_and_nothing_else(
    ask: Ask, options: tuple[str, ...], field: str, value: object
) -> None:
    plain, found = requested(ask, *NAMED), requested(ask, *NAMED, *options)
    assert getattr(found, field) == value
    also = {"accumulate"} if "--accumulate" in options else set()
    changed = {n for n in RunRequest.model_fields if getattr(found, n) != getattr(plain, n)}
    assert changed <= {field, *also}


def test_without_an_option_llmb_chooses(ask: Ask) -> None:
    assert requested(ask, *NAMED) == RunRequest(workload="llama-128m")


def test_without_a_workload_a_size_is_chosen_that_ends_in_time(ask: Ask) -> None:
    assert requested(ask).within_s == USUAL_WITHIN_S
    assert requested(ask, "--within", "30m").within_s == 1800.0
    assert requested(ask, *NAMED).within_s is None


@pytest.mark.parametrize(
    "named",
    [
        *(NAMED, ("--preset", "debug"), ("--mode", "train"), ("--hidden-size", "64")),
        *(("--nproc", "2"), ("--scaling", "1,2"), ("--sequence-length", "64")),
        *(("--intermediate-size", "8"), ("--num-hidden-layers", "2")),
        ("--num-attention-heads", "2"),
    ],
    ids=str,
)
def test_a_time_does_not_go_with_what_names_the_size(ask: Ask, named: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"--within chooses the size .* so does {named[0]}"):
        ask("--within", "10m", *named)


def test_the_debug_preset_is_what_is_not_given_otherwise(ask: Ask) -> None:
    found = requested(ask, *NAMED, "--preset", "debug", "--hidden-size", "32")
    assert found.shape_overrides == {
        "sequence_length": 32,
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    assert (found.batch_size, found.timed_steps) == (2, 20)
    given = requested(ask, *NAMED, "--preset", "debug", "--timed-steps", "7", "--batch-size", "3")
    assert (given.batch_size, given.timed_steps) == (3, 7)


@pytest.mark.parametrize(
    ("workload", "mode", "steps", "new_tokens"),
    [
        ("llama-128m", (), 20, None),
        ("litgpt-forward", (), 10, None),
        ("litgpt-generation", (), 5, 24),
        ("litgpt-generation", ("--mode", "generate"), 5, 24),
    ],
)
def test_the_debug_preset_has_figures_of_its_own_in_each_mode(
    ask: Ask, workload: str, mode: tuple[str, ...], steps: int, new_tokens: int | None
) -> None:
    found = requested(ask, "--workload", workload, "--preset", "debug", *mode)
    assert (found.timed_steps, found.new_tokens) == (steps, new_tokens)
    assert found.prompt_length == (6 if new_tokens else None)


def test_the_presets_batch_is_of_each_part(ask: Ask) -> None:
    found = requested(ask, *NAMED, "--preset", "debug", "--accumulate", "4")
    assert (found.batch_size, found.accumulate) == (8, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-O", "threads"), "-O threads: write it as KEY=VALUE"),
        (("-O", "=4"), "write it as KEY=VALUE"),
        (("--batch-size", "5", "--micro-batch-size", "2", "--accumulate", "2"), "is 4; leave one"),
        (("--tokenizer", "t.json"), "--tokenizer: only with --data"),
        (("--prompt", "hello"), "--prompt needs the tokenizer of a checkpoint"),
        (("--device", "fast\n:1"), "--device .*: not readable text"),
        (("-O", "a=\x1b[2J"), "not readable text"),
        (("--zero", "0", "--dp-shard", "2", "--nproc", "2"), "--zero 0 and --dp-shard 2"),
        (("--schedule", "GPipe"), "is about the stages of --pp"),
        (("--tp", "2"), "tp 2 makes 2 ranks, and there are 1"),
        (("--tp", "3", "--nproc", "2"), "tp 3 makes 3 ranks, and there are 2"),
        (("--seed", "1", "--seed-commitment", "x"), "leave --seed out"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_its_option(
    ask: Ask, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(*NAMED, *options)


@pytest.mark.parametrize(
    "options",
    [
        *(("--seed", "-1"), ("--seed", str(2**63)), ("--repeats", "0"), ("--timed-steps", "0")),
        *(("--new-tokens", "1"), ("--batch-size", "0"), ("--accumulate", "0"), ("--nproc", "0")),
        *(("--zero", "4"), ("--audit", "none"), ("--executor", "gcc"), ("--prompt-length", "0")),
        *(
            ("--mode", "sleep"),
            ("--scope", "core"),
            ("--within", "soon"),
            ("--warmup-steps", "0"),
            ("--warmup-steps", "21"),
        ),
    ],
    ids=str,
)
def test_values_that_none_is_are_refused_by_their_option(
    ask: Ask, options: tuple[str, str]
) -> None:
    with pytest.raises(click.BadParameter) as caught:
        ask(*options)
    assert options[0] in caught.value.format_message()


@pytest.mark.parametrize(
    ("options", "ranks", "mesh"),
    [
        (("--nproc", "4"), 4, {"dp_replicate": 4}),
        (("--nproc", "4", "--dp-shard", "4"), 4, {"dp_shard": 4}),
        (("--nproc", "4", "--dp-shard", "2"), 4, {"dp_shard": 2, "dp_replicate": 2}),
        (("--nproc", "4", "--zero", "3"), 4, {"dp_shard": 4}),
        (("--nproc", "4", "--zero", "2"), 4, {"dp_shard": 4, "reshard_after_forward": False}),
        (("--nproc", "4", "--zero", "0"), 4, {"dp_replicate": 4, "reshard_after_forward": False}),
        (
            ("--nproc", "4", "--zero", "3", "--dp-replicate", "2"),
            4,
            {"dp_shard": 2, "dp_replicate": 2},
        ),
        (("--nproc", "4", "--tp", "2"), 4, {"tp": 2, "dp_replicate": 2}),
        (("--nproc", "4", "--tp", "2", "--zero", "3"), 4, {"tp": 2, "dp_shard": 2}),
        (("--nproc", "2", "--tp", "2", "--loss-parallel"), 2, {"tp": 2, "loss_parallel": True}),
        (
            ("--nproc", "2", "--tp", "2", "--sequence-parallel"),
            2,
            {"tp": 2, "sequence_parallel": True},
        ),
        (("--nproc", "2", "--pp", "2"), 2, {"pp": 2}),
        (("--nproc", "2", "--pp", "2", "--schedule", "GPipe"), 2, {"pp": 2, "schedule": "GPipe"}),
    ],
    ids=str,
)
def test_ranks_share_a_step_as_it_was_asked_for(
    ask: Ask, options: tuple[str, ...], ranks: int, mesh: dict[str, Any]
) -> None:
    request, world_size = ask(*NAMED, *options).given
    assert world_size == ranks
    usual = RunRequest().parallelism.model_dump()
    assert request.parallelism.model_dump() == usual | mesh


@pytest.mark.parametrize(("schedule", "parts"), [((), 2), (("--schedule", "Interleaved1F1B"), 4)])
def test_a_pipeline_has_a_micro_batch_for_each_stage_unless_told_otherwise(
    ask: Ask, schedule: tuple[str, ...], parts: int
) -> None:
    asked = (*NAMED, "--nproc", "2", "--pp", "2", *schedule)
    assert ask(*asked).given[0].accumulate == parts
    assert ask(*asked, "--accumulate", "8").given[0].accumulate == 8


def test_what_ranks_cannot_do_is_refused_before_any_is_foreseen(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise UsageError("not together")

    monkeypatch.setattr(checks, "check", refuse)
    with pytest.raises(UsageError, match="not together"):
        ask(*NAMED, "--nproc", "2")


def test_ranks_are_started_with_the_same_words_and_a_name_of_their_run(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(supervisor, "foresee", lambda *_: None)
    monkeypatch.setattr(launch, "start", lambda *given: started.append(given) or 0)
    monkeypatch.setattr(run.sys, "argv", ["llmb", "run", "--nproc", "2"])
    with pytest.raises(AssertionError, match="nothing was asked for"):
        ask(*NAMED, "--nproc", "2")
    ((count, words, name),) = started
    assert (count, words, len(name)) == (2, ["--isolated", "run", "--nproc", "2"], 32)


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_records_and_the_others_follow(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    def follow(*given: Any) -> None:
        raise AskedError("follows", *given)

    monkeypatch.setattr(supervisor, "follow", follow)
    for name, value in {**RANK, "RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    found = ask(*NAMED)
    assert (found.given[0] == "follows") is (rank == 1)
    place = found.given[2] if rank else found.more["place"]
    assert (place.rank, place.world_size) == (rank, 2)


def test_scaling_starts_its_ranks_itself(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="--scaling starts the ranks itself"):
        ask(*NAMED, "--scaling", "1,2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", None),
        ('{"family": ["llama"]}', "write an object of family and sizes"),
        ('{"family": "llama", "name": "a/b"}', "may hold letters, digits"),
        ('{"family": "llama", "name": 5}', "may hold letters, digits"),
        ("none.json", "cannot read"),
    ],
)
def test_a_workload_of_ones_own_is_an_object_of_sizes(text: str, words: str | None) -> None:
    if words is None:
        assert run.workload_of(text) == (text, None)
        return
    with pytest.raises(UsageError, match=words):
        run.workload_of(text)


def test_a_workload_is_named_by_itself_its_file_or_as_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"family": "llama", "hidden_size": 64}')
    sizes = {"family": "llama", "hidden_size": 64}
    assert run.workload_of(str(file)) == ("mine", sizes)
    assert run.workload_of(file.read_text()) == ("own", sizes)
    assert run.workload_of('{"family": "llama", "name": "x-1"}') == ("x-1", {"family": "llama"})
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not readable text"):
        run.workload_of(str(file))
