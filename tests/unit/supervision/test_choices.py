"""What of a run depends on its mode: defaults, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from llmb import workloads
from llmb.config import BF16, FP16, FP32, Mode, Precision, RunRequest
from llmb.errors import UnavailableError, UsageError
from llmb.supervision import choices
from llmb.supervision.choices import settle
from llmb.workloads import WORKLOADS, Workload

FP8 = Precision(name="FP8", bits=8, dtype="bfloat16", master_weights=True)


def settled(name: str = "llama-1.4b", precision: Precision = BF16, **asked: Any) -> dict[str, Any]:
    workload = workloads.find(name, asked.pop("sizes", {}))
    return settle(RunRequest(workload=name, **asked), workload, precision)


# -- defaults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("executor", "steps"), [("eager", 1), ("inductor", 4), ("thunder", 3)])
def test_the_warm_up_is_as_long_as_the_executor_takes_to_compile(executor: str, steps: int) -> None:
    found = settled(executor=executor)
    assert (found["executor"], found["warmup_steps"]) == (executor, steps)
    assert settled(executor=executor, warmup_steps=9)["warmup_steps"] == 9


@pytest.mark.parametrize(
    ("name", "mode", "steps"),
    [
        ("llama-1.4b", Mode.TRAIN, 50),
        ("litgpt-forward", Mode.FORWARD, 10),
        ("litgpt-generation", Mode.GENERATE, 10),
    ],
)
def test_mode_and_timed_steps_are_the_workloads_own(name: str, mode: Mode, steps: int) -> None:
    found = settled(name)
    assert (found["mode"], found["timed_steps"]) == (mode, steps)
    assert settled(name, timed_steps=3)["timed_steps"] == 3
    assert settled(name, mode=mode)["mode"] is mode


@pytest.mark.parametrize(
    ("name", "scope"), [("litgpt-generation", "step"), ("litgpt-model-inference", "model")]
)
def test_what_is_generated_follows_the_document_and_can_be_chosen(name: str, scope: str) -> None:
    found = settled(name)
    assert found["generate_scope"] == scope
    assert (found["prompt_length"], found["new_tokens"]) == (6, 200)
    other = settled(name, generate_scope="model", prompt_length=8, new_tokens=2)
    assert [other[k] for k in ("generate_scope", "prompt_length", "new_tokens")] == ["model", 8, 2]


def test_in_short_sequences_fewer_tokens_are_generated() -> None:
    found = settled("litgpt-generation", sizes={"sequence_length": 32})
    assert found["new_tokens"] == 32 - 6
    assert settled("litgpt-generation", sizes={"sequence_length": 8})["new_tokens"] == 2


@pytest.mark.parametrize("name", ["llama-1.4b", "litgpt-forward"])
def test_other_modes_have_nothing_to_generate(name: str) -> None:
    found = settled(name)
    named = ("generate_scope", "new_tokens", "prompt_length")
    assert {found[field] for field in named} == {None}


def test_every_workload_settles_in_each_of_its_modes() -> None:
    for name, workload in WORKLOADS.items():
        for mode in workload.modes:
            assert settled(name, mode=mode)["mode"] is mode


# -- what does not go together --------------------------------------------------------------------

GENERATION = "litgpt-generation"
DOCUMENT = "llama-2-7b"


@pytest.mark.parametrize(
    ("name", "precision", "asked", "words"),
    [
        ("llama-1.4b", BF16, {"mode": "forward"}, "has no mode forward (it has train)"),
        (GENERATION, BF16, {"mode": "train"}, "has no mode train (it has generate)"),
        (
            "llama-1.4b",
            BF16,
            {"compile_mode": "max-autotune"},
            "--compile-mode max-autotune is for --executor inductor, not for eager",
        ),
        (
            "llama-1.4b",
            BF16,
            {"compile_mode": "reduce-overhead", "executor": "thunder"},
            "--compile-mode reduce-overhead is for --executor inductor, not for thunder",
        ),
        ("llama-1.4b", BF16, {"sac_freq": "1/2", "executor": "thunder"}, "--sac-freq: thunder"),
        ("llama-1.4b", BF16, {"sac_freq": "3/2"}, "--sac-freq 3/2: write q/p"),
        (DOCUMENT, FP8, {"executor": "inductor"}, "--executor inductor with FP8: the document of"),
        (DOCUMENT, FP8, {"executor": "thunder"}, "--executor thunder with FP8: the document of"),
        (DOCUMENT, FP8, {"sac_freq": "1/4"}, "--sac-freq with FP8: the document of llama-2-7b"),
        ("litgpt-forward", BF16, {"sac_freq": "1/2"}, "--sac-freq is about training"),
        ("litgpt-forward", BF16, {"accumulate": 2}, "--accumulate is about training"),
        (GENERATION, BF16, {"mixed_precision": True}, "--mixed-precision is about training"),
        ("llama-1.4b", BF16, {"generate_scope": "step"}, "--scope step: only in mode generate"),
        ("litgpt-forward", BF16, {"new_tokens": 4}, "--new-tokens 4: only in mode generate"),
        ("llama-1.4b", BF16, {"prompt_length": 4}, "--prompt-length 4: only in mode generate"),
        ("llama-1.4b", BF16, {"prompt_tokens": (1, 2)}, "--prompt: only in mode generate"),
        (
            GENERATION,
            BF16,
            {"sizes": {"sequence_length": 32}, "prompt_length": 8, "new_tokens": 25},
            "--prompt-length 8 and --new-tokens 25 are 33 together, and the model's sequences "
            "have 32",
        ),
        (GENERATION, BF16, {"prompt_length": 4095}, "are 4097 together"),
        ("nemo-bert-base", BF16, {"dynamic": True}, "--dynamic: only in modes train and forward"),
        (GENERATION, BF16, {"dynamic": True}, "--dynamic: only in modes train and forward"),
    ],
)
def test_what_does_not_go_together_is_one_line_that_says_so(
    name: str, precision: Precision, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settled(name, precision, **asked)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "precision", "asked"),
    [
        ("llama-1.4b", FP8, {"executor": "inductor", "sac_freq": "1/2"}),
        (DOCUMENT, BF16, {"executor": "inductor", "sac_freq": "op"}),
        (DOCUMENT, FP8, {}),
        ("litgpt-forward", FP32, {"dynamic": True, "executor": "inductor"}),
        (GENERATION, FP16, {"mixed_precision": False, "executor": "thunder"}),
        ("gpt2-125m", BF16, {"dynamic": True, "accumulate": 2, "mixed_precision": True}),
    ],
)
def test_what_goes_together_is_taken_as_it_was_asked_for(
    name: str, precision: Precision, asked: dict[str, Any]
) -> None:
    found = settled(name, precision, **asked)
    for field in ("executor", "sac_freq", "dynamic"):
        if field in asked:
            assert found[field] == asked[field]


def test_a_prompt_of_the_whole_sequence_leaves_room_for_nothing() -> None:
    longest = workloads.find(GENERATION, {}).shape.sequence_length
    with pytest.raises(UsageError, match="together"):
        settled(GENERATION, prompt_length=longest)
    found = settled(GENERATION, prompt_length=longest - 2)
    assert found["prompt_length"] + found["new_tokens"] == longest


def test_ones_own_causal_model_has_every_mode_and_ones_own_bert_trains() -> None:
    causal = workloads.define("mine", {"family": "gpt2", "num_hidden_layers": 1})
    for mode in Mode:
        assert settle(RunRequest(mode=mode), causal, BF16)["mode"] is mode
    bert: Workload = workloads.define("mine", {"family": "bert", "num_hidden_layers": 1})
    with pytest.raises(UsageError, match=r"has no mode generate \(it has train\)"):
        settle(RunRequest(mode=Mode.GENERATE), bert, BF16)


def test_thunder_that_is_not_installed_is_said_with_the_versions_that_go_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as caught:
        choices.check_installed("thunder")
    text = str(caught.value)
    assert text.startswith("--executor thunder: it is not installed; ")
    assert "pip install lightning-thunder==0.2.6 torch==2.13.0" in text
    assert "\n" not in text


@pytest.mark.parametrize("executor", ["eager", "inductor"])
def test_what_torch_brings_along_is_always_installed(
    monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(choices, "find_spec", asked.append)
    choices.check_installed(executor)
    assert asked == []


def test_thunder_and_shared_key_value_heads_are_refused_where_it_cannot_trace_them() -> None:
    with pytest.raises(UsageError, match="does not know the shared key-value heads"):
        settled("llama-3.1-8b", executor="thunder")
    assert settled("llama-2-7b", executor="thunder")["executor"] == "thunder"
