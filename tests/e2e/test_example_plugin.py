"""A vendor's package, really installed by pip: every hook is seen to take effect."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.e2e import harness
from tests.e2e.harness import Ended

SETTING = "torch._C._get_cudnn_benchmark"  # torch's own name of what the example sets


def test_the_example_package_runs_to_the_end_and_keeps_every_rule(example_run: Ended) -> None:
    assert (example_run.code, example_run.said) == (0, [])
    assert example_run.record["audit"]["verdict"] == "CONSISTENT"
    assert example_run.record["plugin"]["name"] == "example"


def test_the_record_names_the_distribution_and_version_that_pip_installed(
    example_run: Ended,
) -> None:
    facts = example_run.record["plugin"]
    assert (facts["distribution"], facts["version"]) == ("llmb-example", "1.2.3")


def test_the_environment_variable_of_the_plugin_reaches_record_and_diff(example_run: Ended) -> None:
    assert example_run.record["system"]["env"]["TORCH_EXAMPLE_FUSE"] == "mlp"
    settings = (example_run.directory / "settings.diff").read_text()
    assert "+environment.TORCH_EXAMPLE_FUSE: mlp" in settings.replace(" = ", ": ")


def test_three_warm_up_steps_are_done_because_the_plugin_asks_for_them(example_run: Ended) -> None:
    record = example_run.record
    assert record["config"]["warmup_steps"] == 3
    assert record["timing"]["fence_steps"][0] == 3


def test_the_torch_setting_that_the_plugin_changed_is_in_the_diff(example_run: Ended) -> None:
    changes = {change["name"]: change for change in example_run.record["diff"]["settings"]}
    assert (changes[SETTING]["before"], changes[SETTING]["after"]) == ("False", "True")
    assert f"+{SETTING}" in (example_run.directory / "settings.diff").read_text()


def test_replaced_modules_and_the_fused_parameter_are_in_the_model_diff(example_run: Ended) -> None:
    diff = example_run.record["diff"]["model"]
    assert {"model.layers.0.mlp", "model.layers.1.mlp"} <= set(diff["modules_replaced"])
    assert "model.layers.0.mlp.gate_proj" in diff["modules_removed"]
    text = (example_run.directory / "model.diff").read_text()
    assert "llmb_example.fused.FusedMLP" in text
    assert "gate_up[256, 64]" in text


def test_fused_weights_are_found_under_their_canonical_names_and_unchanged(
    example_run: Ended,
) -> None:
    weights = example_run.evidence("weights.json")
    pristine = {w["name"]: w["sha256"] for w in weights["pristine"]}
    processed = {w["name"]: w["sha256"] for w in weights["processed"]}
    assert "model.layers.1.mlp.up_proj.weight" in processed
    assert processed == pristine


def fence_losses(done: Ended) -> dict[int, float]:
    """Return steps done -> loss, read back at the fences."""
    losses = load_file(done.directory / "evidence/repeat-0/fences.safetensors")["loss"]
    return dict(zip(done.record["timing"]["fence_steps"], losses.tolist(), strict=False))


def test_the_fused_model_trains_like_the_reference(example_run: Ended, tmp_path: Path) -> None:
    # A plugin that leaves the model as it is.
    flags = (*harness.SAME, "--warmup-steps=3", "--audit=quick")
    reference = fence_losses(harness.run_plugin(tmp_path, "", *flags))
    fused = fence_losses(example_run)
    assert len(reference) >= 3
    assert fused == pytest.approx(reference, rel=1e-5)


def test_the_plugins_choice_of_kernel_is_in_the_optimizer_evidence(example_run: Ended) -> None:
    (group,) = example_run.evidence("optimizer.json")["groups"]
    assert (group["foreach"], group["fused"]) == (True, None)
    o1 = next(f for f in example_run.record["audit"]["findings"] if f["id"] == "O1")
    assert o1["status"] == "pass"


def test_the_sources_of_the_plugin_are_copied_and_pinned_by_digest(
    example_run: Ended, example_site: Path
) -> None:
    files = {file["path"]: file["sha256"] for file in example_run.record["plugin"]["files"]}
    names = ("__init__", "backend", "fused", "plugin")
    assert set(files) == {f"llmb_example/{name}.py" for name in names}
    for path, digest in files.items():
        copied = (example_run.directory / "plugin" / path).read_bytes()
        assert hashlib.sha256(copied).hexdigest() == digest
        assert copied == (example_site / path).read_bytes()


def test_option_patch_and_facts_of_the_plugin_are_in_the_record(example_run: Ended) -> None:
    record = example_run.record
    assert record["plugin"]["options"] == {"fuse": "mlp"}
    (patch,) = record["plugin"]["declared_patches"]
    assert patch["target"] == "torch.nn.functional.example_*"
    drivers = record["system"]["drivers"]
    assert (drivers["example_driver"], drivers["example_library"]) == ("4.5.6", "7.8.9")
    assert record["system"]["devices"][0]["description"] == "the example's CPU"


def test_the_datasheet_peak_of_the_plugin_gives_an_mfu_with_its_source(example_run: Ended) -> None:
    result, workload = example_run.record["result"], example_run.record["workload"]
    assert result["mfu"]["peak_source"] == "example datasheet, page 1"
    rate = result["tokens_per_second"] * workload["flops_per_token"]
    assert result["mfu"]["value"] == pytest.approx(rate / 1e12)


def test_memory_that_the_backend_cannot_tell_is_null_and_not_zero(example_run: Ended) -> None:
    assert example_run.record["result"]["peak_memory_bytes"] is None


def test_an_option_given_on_the_command_line_changes_what_the_plugin_does(
    tmp_path: Path, example_site: Path
) -> None:
    flags = ("--plugin=example", "--precision=FP16", *harness.TINY_RUN, "-O", "fuse=none")
    done = harness.run(tmp_path / "out", *flags, plugins=[example_site])
    assert done.record["plugin"]["options"] == {"fuse": "none"}
    assert done.record["diff"]["model"]["modules_replaced"] == []
    assert done.record["system"]["env"]["TORCH_EXAMPLE_FUSE"] == "none"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("fuse=everything", ("fuse=everything", "mlp, none")),
        ("speed=1", ("speed", "fuse")),
    ],
)
def test_an_option_or_value_the_plugin_does_not_have_is_a_usage_error(
    tmp_path: Path, example_site: Path, option: str, words: tuple[str, ...]
) -> None:
    flags = ("--plugin=example", *harness.TINY_RUN, "-O", option)
    done = harness.run(tmp_path / "out", *flags, plugins=[example_site])
    assert (done.code, len(done.said)) == (2, 1)
    assert all(word in done.said[0] for word in words)


def test_plugin_list_shows_the_installed_example_with_what_it_offers(example_site: Path) -> None:
    done = harness.call("plugin", "list", "--json", env=harness.environment(example_site))
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    assert list(offers) == ["example", "cpu", "generic"]
    example = offers["example"]
    assert (example["available"], example["distribution"]) == (True, "llmb-example")
    assert [precision["name"] for precision in example["precisions"]] == ["FP32", "BF16", "FP16"]
    assert example["options"] == {"fuse": "mlp"}
    assert "generic" in offers


@pytest.mark.quick
def test_the_example_imports_nothing_of_llmb_but_the_three_vendor_rooms() -> None:
    import ast

    allowed = {"llmb.plugin", "llmb.config", "llmb.errors"}
    package = Path(__file__).parent.parent / "plugins" / "llmb-example" / "llmb_example"
    imported = {
        node.module
        for file in package.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llmb.")
    }
    assert imported == allowed
