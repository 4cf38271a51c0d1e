"""A recorded configuration asked for again resolves to itself, but for the seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llmb import workloads
from llmb.config import BF16, FP32, AuditMode, DataSource, Mode, Parallelism, RunRequest
from llmb.errors import LlmbError, UnavailableError, UsageError
from llmb.inputs.checkpoint import open_checkpoint
from llmb.inputs.contents import describe
from llmb.plugin.options import PluginOption, resolve
from llmb.records.finding import RULES_VERSION
from llmb.records.run_record import RunRecord
from llmb.reference import pins
from llmb.reference.models import build
from llmb.reproduction.request_again import Places, _text, notes, request_of
from llmb.supervision import selection
from tests import builders
from tests.unit.builders_inputs import write_pair
from tests.unit.builders_runtime import TINY, offer, run_config

WIDE = BF16.model_copy(update={"master_weights": True})
RECORD = builders.make_record(repeats=1)


def recorded(**config: Any) -> RunRecord:
    return RECORD.model_copy(update={"config": run_config(**config)})


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"precision": FP32, "batch_size": 16, "accumulate": 4, "repeats": 3, "timed_steps": 70},
        {"workload": "gpt2-125m", "precision": WIDE, "mixed_precision": True, "warmup_steps": 9},
        {"workload": "gpt2-125m", "mixed_precision": False, "sac_freq": "1/2"},
        {"executor": "inductor", "compile_mode": "max-autotune", "dynamic": True},
        {"shape_overrides": TINY, "timed_steps": 20, "audit": AuditMode.QUICK},
        {"shape_overrides": TINY, "timed_steps": 20, "audit": AuditMode.OFF},
        {"workload": "litgpt-forward", "mode": Mode.FORWARD, "timed_steps": 10},
        {
            "workload": "litgpt-generation",
            "mode": Mode.GENERATE,
            "timed_steps": 10,
            "generate_scope": "step",
            "prompt_length": 3,
            "new_tokens": 12,
            "prompt_tokens": (1, 2, 3),
        },
        {"workload": "own", "definition": {"family": "gpt2", "hidden_size": 96}},
    ],
    ids=lambda config: ",".join(config) or "official",
)
def test_a_configuration_resolves_to_itself_with_a_seed_of_its_own(config: dict[str, Any]) -> None:
    record = recorded(**config)
    request = request_of(record)
    assert request.seed is None
    again = selection.resolve(offer(), request, workloads.of(request))
    assert again.seed != record.config.seed
    assert again.model_copy(update={"seed": record.config.seed}) == record.config


def test_the_batch_size_that_was_found_is_taken_without_a_search() -> None:
    request = request_of(RECORD)
    assert RECORD.batch_size_search is not None
    assert request.batch_size == 8
    assert not selection.wants_search(offer(device="fast:0"), request.batch_size)
    assert any("found 8: that is taken, without a search" in note for note in notes(RECORD))


def test_every_option_of_the_plugin_means_again_what_it_meant() -> None:
    options = {"a": True, "b": False, "c": 3, "d": 0.1, "e": "max autotune", "f": 1e-7, "g": "-x"}
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    offered = [
        PluginOption(name=name, type=kinds[type(value)], default=value, help="")  # type: ignore[arg-type]
        for name, value in options.items()
    ]
    request = request_of(recorded(plugin_options=options))
    assert resolve("cpu", offered, request.plugin_options) == options


def test_an_option_that_the_plugin_did_not_have_there_may_be_given() -> None:
    given = request_of(RECORD, Places(options={"new": "1"})).plugin_options
    assert given == {"compile": "max autotune", "fused": "true", "level": "3", "new": "1"}


def test_an_option_of_the_original_cannot_be_changed() -> None:
    with pytest.raises(UsageError, match="-O level: the original has it as '3'"):
        request_of(RECORD, Places(options={"level": "4"}))


def test_another_device_of_the_same_kind_may_be_named() -> None:
    assert request_of(RECORD).device == "fast:0"
    assert request_of(RECORD, Places(device="fast:3")).device == "fast:3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules_version": "1"}, f"rules 1, this llmb has rules {RULES_VERSION}"),
        ({"rules_version": "77"}, f"rules 77, this llmb has rules {RULES_VERSION}"),
        ({"config": run_config(workload="gpt-9")}, r"unknown workload 'gpt-9'.*made by llmb"),
    ],
)
def test_what_this_llmb_cannot_do_again_is_refused_as_not_available(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnavailableError, match=words):
        request_of(RECORD.model_copy(update=change))


#: References of llmb 0.1.0: the one whose llama computes as here, and an earlier one.
SAME = "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8"
EARLIER = "649af7d83608b5067109ea718ef3f0fce24e609314ada6221fbe096abf664886"


def test_the_workload_of_an_older_llmb_is_run_where_its_family_computes_the_same() -> None:
    record = RECORD.model_copy(update={"llmb_version": "0.1.0", "reference_digest": SAME})
    assert request_of(record) == request_of(RECORD)
    (said,) = (note for note in notes(record) if "made by llmb 0.1.0" in note)
    assert "the llama computation is the same in llmb" in said
    assert not any("made by" in note for note in notes(RECORD))


@pytest.mark.parametrize(("digest", "family"), [(EARLIER, "llama"), (SAME, "bert")])
def test_where_the_family_computes_otherwise_the_version_to_install_is_named(
    digest: str, family: str
) -> None:
    workload = RECORD.workload.model_copy(update={"family": family})
    changes = {"llmb_version": "0.1.0", "reference_digest": digest, "workload": workload}
    words = f"the {family} computation is not the same in llmb .*: use llmb 0.1.0"
    with pytest.raises(UnavailableError, match=words):
        request_of(RECORD.model_copy(update=changes))


def test_a_reference_that_was_changed_here_runs_no_bundle_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reference"
    shutil.copytree(pins.FOLDER, folder)
    (folder / "optimizer.py").write_text("# another\n")
    monkeypatch.setattr(pins, "FOLDER", folder)
    with pytest.raises(UnavailableError, match="computation is not the same"):
        request_of(RECORD)


def test_many_ranks_are_asked_for_again_each_on_a_device_of_its_own() -> None:
    mesh = Parallelism(dp_shard=2, tp=2, sequence_parallel=True)
    asked = request_of(recorded(parallelism=mesh, device="fast:0"))
    assert (asked.parallelism, asked.device) == (mesh, "fast")


@pytest.mark.parametrize("name", ["x/../../y", "..", "a b", "\u202ex", "", "x" * 65])
def test_a_name_that_leads_out_of_the_run_directorys_folder_is_refused(name: str) -> None:
    odd = recorded(workload=name, definition={"family": "gpt2", "hidden_size": 96})
    with pytest.raises(UnavailableError, match="a name may hold letters"):
        request_of(odd)


@pytest.fixture
def data(tmp_path: Path) -> DataSource:
    """Give the data of an original, as its record has them: without the folder."""
    found = describe(str(write_pair(tmp_path / "theirs" / "pair", [[1, 2, 3], [4, 5]])))
    return found.model_copy(update={"path": "pair"})


def asked(record: RunRecord, **places: Any) -> RunRequest:
    return request_of(record, Places(**places))


def test_data_are_taken_from_wherever_they_are_if_their_digest_is_the_same(
    tmp_path: Path, data: DataSource
) -> None:
    here = write_pair(tmp_path / "here" / "renamed", [[1, 2, 3], [4, 5]])
    found = asked(recorded(data=data), data=str(here)).data
    assert found is not None
    assert (found.path, found.sha256) == (str(here), data.sha256)


def test_data_that_were_not_given_are_named_with_what_to_type(data: DataSource) -> None:
    with pytest.raises(UnavailableError, match=rf"'pair' \(digest {data.sha256[:12]}\).*--data"):
        asked(recorded(data=data))


def refused(kind: type[LlmbError], words: str, record: RunRecord, **places: Any) -> None:
    with pytest.raises(kind, match=words):
        asked(record, **places)


def test_other_data_are_refused_by_their_digest(tmp_path: Path, data: DataSource) -> None:
    here = write_pair(tmp_path / "here" / "pair", [[1, 2, 3], [4, 6]])
    refused(UsageError, "these are other tokens", recorded(data=data), data=str(here))


def test_files_for_an_original_that_had_none_are_a_mistake(tmp_path: Path) -> None:
    refused(UsageError, "tokens are random", RECORD, data=str(tmp_path))
    refused(UsageError, "tokens are random", RECORD, tokenizer="bytes")
    refused(UsageError, "weights are random", RECORD, weights=tmp_path)


def test_weights_that_were_not_given_are_named_with_what_to_type() -> None:
    record = recorded(weights={"path": "tiny-llama", "sha256": "c" * 64})
    refused(UnavailableError, r"'tiny-llama' \(digest cccccccccccc\).*--weights", record)


def test_a_debug_run_and_one_that_is_not_consistent_are_labelled() -> None:
    debug = builders.make_record(1, timed_steps=10, waivers=("--timed-steps 10",))
    said = " ".join(notes(debug))
    assert "a debug run (--timed-steps 10): so is this one" in said
    assert "UNVERIFIED: no repetition makes it REPRODUCED" in said
    assert "seed is drawn afresh" in said


SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
SMALL = {"family": "llama", "sequence_length": 64, "padding_idx": None, **SIZES}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Give a folder with a checkpoint of the model that ``SMALL`` describes."""
    shape = workloads.find("small", {}, SMALL).shape
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    weights = build(shape, seed=1, dtype=torch.float32).state_dict()
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False}
    config |= {"max_position_embeddings": 64, **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_weights_are_taken_if_their_digest_is_the_same_and_refused_if_not(checkpoint: Path) -> None:
    digest = open_checkpoint(checkpoint, workloads.find("small", {}, SMALL).shape).digest
    for sha256, same in ((digest, True), ("c" * 64, False)):
        record = recorded(
            workload="small", definition=SMALL, weights={"path": "theirs", "sha256": sha256}
        )
        if not same:
            refused(UsageError, "these are other weights", record, weights=checkpoint)
            continue
        found = asked(record, weights=checkpoint).weights
        assert found is not None
        assert (found.path, found.sha256) == (str(checkpoint), digest)


def test_an_option_is_written_as_o_takes_it() -> None:
    texts = [_text(value) for value in (True, False, 4, "Max")]
    assert texts == ["true", "false", "4", "Max"]
