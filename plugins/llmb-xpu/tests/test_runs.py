"""Real runs through the command line: repacked weights, torch's optimizer, the same losses."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests import needs
from tests.e2e import harness
from tests.e2e.harness import Ended

needs.package("intel_extension_for_pytorch")
pytestmark = pytest.mark.slow

Once = Callable[[str, Callable[[Path], Ended]], Ended]
BF16, FP32 = "BF16", "FP32"
RELEASE = version("intel-extension-for-pytorch")
#: Heads of 18 and widths of 72 and 100: no multiples of the blocks of 16, 32 and 64.
UNEVEN = ("--hidden-size=72", "--intermediate-size=100")
LINEAR = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
#: Distance of two neighbouring BF16 numbers near the first loss, ln(32000) = 10.4.
BF16_SPACING = 2.0**-4


@pytest.fixture(scope="session")
def trained(once: Once) -> Callable[..., Ended]:
    """Return a function that makes a tiny run, once per session for the same arguments."""

    def train(plugin: str, precision: str, *shape: str) -> Ended:
        flags = (f"--plugin={plugin}", "--device=cpu", f"--precision={precision}", *harness.SAME)
        name = "-".join((plugin, precision, *shape))
        return once(
            name,
            lambda folder: harness.run(folder / "out", *flags, *harness.TINY_RUN, *shape),
        )

    return train


@pytest.fixture(scope="session", params=[(BF16,), (FP32,), (BF16, *UNEVEN), (FP32, *UNEVEN)])
def case(request: pytest.FixtureRequest, bf16_refused: str | None) -> tuple[str, ...]:
    if BF16 in request.param and bf16_refused is not None:
        pytest.skip(bf16_refused)
    return request.param


@pytest.fixture(scope="session")
def done(trained: Callable[..., Ended], case: tuple[str, ...]) -> Ended:
    return trained("xpu", *case)


def losses(done: Ended) -> list[float]:
    return load_file(done.directory / "evidence/repeat-0/fences.safetensors")["loss"].tolist()


def test_a_run_with_the_extension_ends_well_and_says_nothing(done: Ended) -> None:
    assert (done.code, done.said) == (0, [])
    assert done.record["plugin"]["name"] == "xpu"
    assert done.record["config"]["device"] == "cpu"


@pytest.mark.parametrize("workload", ["gpt2-125m", "nemo-bert-base"])
def test_other_families_are_audited_and_not_accused(tmp_path: Path, workload: str) -> None:
    flags = ("--plugin=xpu", "--device=cpu", "--precision=FP32", "--preset=debug")
    done = harness.run(tmp_path / "out", *flags, f"--workload={workload}")
    assert (done.code, done.said) == (0, [])
    found = {
        f["id"]: f["status"] for f in done.record["audit"]["findings"] if f["level"] == "block"
    }
    assert {found[rule] for rule in ("W1", "E1", "E2", "E3", "P1", "O1", "O2")} == {"pass"}


def test_its_losses_are_those_of_the_plugin_cpu_within_rounding(
    done: Ended, case: tuple[str, ...], trained: Callable[..., Ended]
) -> None:
    found, expected = losses(done), losses(trained("cpu", *case))
    assert len(found) >= 3
    tolerance = BF16_SPACING if case[0] == BF16 else 1e-5 * expected[0]
    assert found == pytest.approx(expected, abs=tolerance)


def test_every_linear_layer_was_really_replaced(done: Ended) -> None:
    layers = [f"model.layers.{number}" for number in range(2)]
    paths = {f"{layer}.{name}" for layer in layers for name in LINEAR}
    attention = {f"{layer}.self_attn.core_attention" for layer in layers}  # by llmb's plugin cpu
    replaced = set(done.record["diff"]["model"]["modules_replaced"])
    assert replaced == {*paths, *attention, "lm_head"}
    after = done.evidence("model.json")["after"]
    assert all("_IPEXLinear" in after[path] for path in (*paths, "lm_head"))


def test_repacked_weights_are_found_and_equal_to_the_pristine_ones_bit_for_bit(done: Ended) -> None:
    weights = done.evidence("weights.json")
    assert len(weights["pristine"]) == 21
    assert weights["processed"] == weights["pristine"]


def test_what_is_stored_besides_the_weights_is_declared_as_padding(done: Ended) -> None:
    padding = done.evidence("weights.json")["padding"]
    assert "lm_head._ipex_module_empty_weight_tensor" in padding
    after = done.evidence("model.json")["after"]
    assert all(name.rpartition(".")[0] in after for name in padding)


def test_weights_are_stored_in_the_declared_format_only(done: Ended, case: tuple[str, ...]) -> None:
    expected = {BF16: "bfloat16", FP32: "float32"}[case[0]]
    assert {weight["dtype"] for weight in done.evidence("weights.json")["processed"]} == {expected}
    stored = " ".join(done.evidence("model.json")["after"].values())
    assert not {"bfloat16", "float32"} - {expected} & {
        word.partition(":")[2].strip(",") for word in stored.split()
    }


def test_the_optimizer_is_torchs_own_and_rule_o1_passes(done: Ended) -> None:
    seen = done.evidence("optimizer.json")
    assert seen["class_name"] == "torch.optim.adamw.AdamW"
    assert seen["class_is_torchs"]
    assert seen["step_is_torchs"]
    assert seen["instance_overrides"] == []
    assert seen["step_hooks"] == 0
    assert (seen["trainable"], seen["missing"], seen["repeated"]) == (21, [], [])
    (o1,) = (f for f in done.record["audit"]["findings"] if f["id"] == "O1")
    assert o1["status"] == "pass", o1["message"]


def test_the_record_names_the_extension_and_what_its_import_replaces(done: Ended) -> None:
    drivers = done.record["system"]["drivers"]
    assert drivers["intel-extension-for-pytorch"] == RELEASE
    assert drivers["ipex_isa"]
    targets = {patch["target"] for patch in done.record["plugin"]["declared_patches"]}
    assert {"torch.jit.trace", "torch.embedding_bag"} <= targets


def test_the_sources_of_the_plugin_are_in_the_record(done: Ended) -> None:
    shown = {Path(file["path"]).name for file in done.record["plugin"]["files"]}
    assert {"plugin.py", "extension.py", "repacked.py"} <= shown


def test_the_extensions_compiled_libraries_are_closed_components_with_their_release(
    done: Ended,
) -> None:
    closed = {Path(c["name"]).name: c for c in done.record["plugin"]["closed_components"]}
    kernels = closed["libintel-ext-pt-cpu.so"]
    assert (kernels["version"], len(kernels["sha256"])) == (RELEASE, 64)
