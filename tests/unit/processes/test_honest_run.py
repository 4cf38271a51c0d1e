"""The honest run beside a worker's: same weights, tokens and steps, and no post-processing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import nn

from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.errors import RunFailedError
from llmb.formats import KNOWN
from llmb.observe.passes import Numerics, Sketches, plain_pass
from llmb.observe.step_sampler import KINDS
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.processes import honest_run, repetition
from llmb.records import audited, evidence
from llmb.records.audited import LIVE_WEIGHTS
from llmb.records.evidence import LibraryBaseline, LitmusEvidence
from llmb.reference.data import Batch, random_tokens
from llmb.wire.messages import HonestOrder, Unmade
from tests.unit import builders_audit
from tests.unit.builders_audit import END, Audited, Replayed, shape_of, small_vocabulary, worked
from tests.unit.builders_runtime import run_config

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
NAMES = [known.name for known in KNOWN]
LITMUS = LitmusEvidence(dtype="bfloat16", length=8, ones=8.0, big=256.0, kept=1.0, operand_bits=8)


#: The passes of the judged steps.
STEPS = [audited.judged_pass(step) for step in builders_audit.JUDGED]


@pytest.fixture(autouse=True)
def nothing_else_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what is said of the process itself: this one is pytest's."""
    watch = SimpleNamespace(evidence=builders_audit._unseen, stands=lambda *_: False)
    monkeypatch.setattr(honest_run, "unreachable_watch", lambda **_: watch)
    monkeypatch.setattr(honest_run, "litmus", lambda config: LITMUS)


def be_honest(order: HonestOrder) -> Replayed:
    line = Replayed(())
    honest_run.make(line, order)
    return line


Beside = Callable[[Precision], Audited]


@pytest.fixture
def run(worked: Callable[..., Audited], tmp_path: Path) -> Audited:
    """A run of its own: to be altered, or calibrated by another order."""
    return worked(precision=BF16).copied(tmp_path)


@pytest.fixture(scope="module")
def beside(worked: Callable[..., Audited], tmp_path_factory: pytest.TempPathFactory) -> Beside:
    """Return a run and the honest one beside it, made once: to be looked at."""

    @cache
    def once(precision: Precision) -> Audited:
        run = worked(precision=precision).copied(tmp_path_factory.mktemp("beside"))
        be_honest(run.honest)
        return run

    return once


def read(run: Audited, name: str) -> dict[str, torch.Tensor]:
    return load((run.folder / name).read_bytes())


def made(run: Audited) -> set[str]:
    """Return class and pass of every array, such as ``BF16/live``."""
    return {"/".join(name.split("/")[:2]) for name in read(run, audited.HONEST)}


def test_every_file_is_announced_with_its_digest(run: Audited) -> None:
    announced = be_honest(run.honest).announced()
    assert set(announced) == {
        audited.HONEST,
        audited.REPLAY,
        audited.REPLAYED,
        audited.HONEST_NAMESPACE,
        evidence.LITMUS,
    }
    for name, digest in announced.items():
        assert hashlib.sha256((run.folder / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("precision", "borders"),
    [
        (FP32, {"TF32", "BF16", "FP8"}),
        (TF32, {"BF16", "FP8"}),
        (FP16, {"BF16", "FP8"}),
        (BF16, {"FP8"}),
        (FP8, set(NAMES[NAMES.index("FP8") + 1 :])),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_declared_format_is_run_in_every_pass_and_narrower_ones_in_the_probes_only(
    beside: Beside, precision: Precision, borders: set[str]
) -> None:
    run = beside(precision)
    own = {f"{precision.name}/{name}" for name in ("live", "branches", "head", *STEPS)}
    probes = {f"{border}/{name}" for border in borders for name in ("branches", "head")}
    narrow = precision.dtype != "float32"
    wide = wide_losses(precision.name, *STEPS) if narrow else set()
    assert made(run) == own | probes | wide


def test_in_a_format_that_nobody_knows_there_is_no_honest_run(beside: Beside) -> None:
    unknown = Precision(name="ACME5", bits=5, dtype="bfloat16")
    run = beside(unknown)
    assert made(run) == set()


def wide_losses(name: str, *more: str) -> set[str]:
    return {f"{name}{audited.WIDE_LOSS}/{one}" for one in ("live", "branches", "head", *more)}


def test_a_quick_audit_measures_no_borders_and_no_sums(run: Audited) -> None:
    announced = be_honest(run.honest.model_copy(update={"borders": False})).announced()
    own = {f"BF16/{name}" for name in ("live", "branches", "head", *STEPS)}
    assert made(run) == own | wide_losses("BF16", *STEPS)
    assert evidence.LITMUS not in announced


def test_an_honest_pass_is_the_pristine_model_in_the_declared_type_at_the_runs_own_batch(
    beside: Beside,
) -> None:
    run = beside(BF16)
    shape, shown = shape_of(run.config), read(run, audited.HONEST)
    weights = load_file(run.scratch / LIVE_WEIGHTS)
    ids = random_tokens(1000 + END, 2, shape.sequence_length, shape.vocab_size)
    collect = Sketches("live", run.honest.seed, shape)
    plain_pass(
        weights.__getitem__, shape, Batch(ids, ids), Numerics(torch.bfloat16, "cpu"), collect
    )
    for name, value in collect.tensors.items():
        assert torch.equal(shown[f"BF16/{name}"], value)


@pytest.mark.parametrize("precision", [FP32, BF16, FP16], ids=lambda p: p.name)
def test_beside_an_untouched_worker_on_the_same_device_nothing_differs(
    beside: Beside, precision: Precision
) -> None:
    run = beside(precision)
    shown, honest = read(run, audited.GRADIENTS), read(run, audited.HONEST)
    for name, value in honest.items():
        kind, _, rest = name.partition("/")
        if kind != precision.name or rest.endswith("loss") or rest in STEPS:
            continue
        if rest.startswith("head/"):  # made without the silent layers: other sums, same numbers
            torch.testing.assert_close(shown[rest], value, rtol=0.1, atol=float(value.abs().max()))
        else:
            assert torch.equal(shown[rest], value), name


@pytest.mark.parametrize("precision", [FP32, BF16], ids=lambda p: p.name)
def test_judged_steps_are_made_again_from_their_own_weights_and_tokens(
    beside: Beside, precision: Precision
) -> None:
    run = beside(precision)
    rows = read(run, audited.LEDGER_VALUES)[audited.ROWS]
    for step in builders_audit.JUDGED:
        honest = read(run, audited.HONEST)[f"{precision.name}/{audited.judged_pass(step)}"]
        assert torch.equal(rows[step, : len(honest)], honest)


def test_judged_steps_have_elements_of_their_own_where_no_step_is_replayed(beside: Beside) -> None:
    run = beside(FP16)
    seen, honest = read(run, audited.STEP_VALUES), read(run, audited.HONEST)
    for step in builders_audit.JUDGED:
        shown = seen[f"{step}/gradient"]
        assert len(shown) > 1000
        assert torch.equal(shown, honest[f"FP16/{audited.judged_pass(step)}"])


def test_nothing_that_post_processing_did_is_in_the_honest_run(tmp_path: Path) -> None:
    def skip(model: nn.Module) -> nn.Module:
        model.model.layers["1"].forward = lambda x, cos, sin: x
        return model

    run = builders_audit.work(tmp_path, post_process=skip)
    be_honest(run.honest)
    name = "BF16/live/model.layers.1.mlp.up_proj.weight"
    assert float(read(run, audited.HONEST)[name].norm()) > 0
    assert name.removeprefix("BF16/") not in read(run, audited.GRADIENTS)


def test_audited_steps_are_replayed_but_for_the_very_first(beside: Beside) -> None:
    run = beside(BF16)
    seen, again = read(run, audited.STEP_VALUES), read(run, audited.REPLAY)
    assert set(again) == {f"{step}/replayed/{kind}" for step in (4, 7) for kind in KINDS}
    for step in (4, 7):
        for kind in KINDS:
            assert torch.equal(again[f"{step}/replayed/{kind}"], seen[f"{step}/after/{kind}"])


def test_passes_too_large_for_the_host_are_made_here_in_the_wider_format(run: Audited) -> None:
    order = run.honest.model_copy(update={"reference_passes": ("live",)})
    assert audited.DEVICE_REFERENCE in be_honest(order).announced()
    found = read(run, audited.DEVICE_REFERENCE)
    assert {name.partition("/")[0] for name in found} == {"branches", "live"}
    honest = read(run, audited.HONEST)
    name = "live/lm_head.weight"
    error = float((honest[f"BF16/{name}"] - found[name]).norm() / found[name].norm())
    assert 2**-12 < error < 2**-4


def test_a_library_is_imported_before_the_plugin_and_its_baseline_written(
    run: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    baseline = LibraryBaseline(imported=("acme",), failed={}, replaced=())

    def library(modules: Any, *whose: str) -> LibraryBaseline:
        order.append(f"library {modules}")
        return baseline

    monkeypatch.setattr(honest_run, "library_baseline", library)
    plugin = honest_run.Plugin
    monkeypatch.setattr(honest_run, "Plugin", lambda name: order.append("plugin") or plugin(name))
    line = be_honest(run.honest.model_copy(update={"library_modules": ("acme",)}))
    assert order == ["library ('acme',)", "plugin"]
    written = (run.folder / evidence.LIBRARY).read_bytes()
    assert LibraryBaseline.model_validate_json(written) == baseline
    assert evidence.LIBRARY in line.announced()


def test_float32_products_are_those_that_were_declared_whatever_the_plugin_set(
    worked: Callable[..., Audited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worked(precision=FP32).copied(tmp_path)

    class Loose(honest_run.Plugin):
        def set_environment(self, config: Any) -> None:
            torch.set_float32_matmul_precision("medium")

    monkeypatch.setattr(honest_run, "Plugin", Loose)
    be_honest(run.honest)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("name", [audited.STEP_VALUES, audited.STEPS])
def test_evidence_that_was_altered_ends_in_a_failed_run(run: Audited, name: str) -> None:
    path = run.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(
        RunFailedError, match=f"{name} is not what the worker wrote: it was altered"
    ):
        be_honest(run.honest)
    assert not (run.folder / audited.HONEST).exists()


def test_weights_that_were_altered_end_in_a_failed_run(run: Audited) -> None:
    path = run.scratch / LIVE_WEIGHTS
    tensors = load(path.read_bytes())
    tensors["lm_head.weight"][0, 0] += 1
    path.write_bytes(save(tensors))
    with pytest.raises(RunFailedError, match=f"{LIVE_WEIGHTS} is not what the worker wrote"):
        be_honest(run.honest)


def test_a_run_in_which_nothing_was_looked_at_has_an_empty_replay(tmp_path: Path) -> None:
    run = builders_audit.work(tmp_path, audits=())
    be_honest(run.honest)
    assert read(run, audited.REPLAY) == {}
    assert made(run) == {
        *("BF16/live", "BF16/branches", "BF16/head", "FP8/branches", "FP8/head"),
        *(f"BF16/{step}" for step in STEPS),
        *wide_losses("BF16", *STEPS),
    }


EVERYTHING = {
    audited.HONEST,
    audited.DEVICE_REFERENCE,
    audited.REPLAY,
    audited.REPLAYED,
    audited.HONEST_NAMESPACE,
    evidence.LITMUS,
}


@pytest.mark.parametrize(
    ("breaks", "lost"),
    [
        ("honest_passes", audited.HONEST),
        ("device_reference", audited.DEVICE_REFERENCE),
        ("optimizer_steps", audited.REPLAY),
        ("repetition.StreamReplay", audited.REPLAYED),
        ("litmus", evidence.LITMUS),
    ],
)
def test_what_a_device_cannot_do_is_told_and_costs_nothing_else(
    run: Audited, monkeypatch: pytest.MonkeyPatch, breaks: str, lost: str
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no kernel image\nfor this device")

    owner, _, name = breaks.rpartition(".")
    monkeypatch.setattr(repetition if owner else honest_run, name, broken)
    line = be_honest(run.honest.model_copy(update={"reference_passes": ("live",)}))
    assert set(line.announced()) == EVERYTHING - {lost}
    (unmade,) = (message for message in line.sent if isinstance(message, Unmade))
    assert unmade.reason == "RuntimeError: no kernel image"


def test_a_device_without_float64_still_has_its_honest_run_and_its_replay(
    worked: Callable[..., Audited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worked(precision=FP32).copied(tmp_path)
    sketches = honest_run.Rerun.sketches

    def narrow(self: Any, name: str, numerics: Numerics, batch: int) -> Any:
        if numerics.dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return sketches(self, name, numerics, batch)

    monkeypatch.setattr(honest_run.Rerun, "sketches", narrow)
    line = be_honest(run.honest.model_copy(update={"reference_passes": ("live",)}))
    assert set(line.announced()) == EVERYTHING - {audited.DEVICE_REFERENCE}


def test_a_device_whose_float32_products_are_narrow_is_asked_for_full_ones_in_the_reference(
    run: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Narrow(CpuBackend):
        @contextmanager
        def full_float32_products(self) -> Iterator[None]:
            asked.append("full")
            yield
            asked.append("as before")

    sketches = honest_run.Rerun.sketches

    def noted(self: Any, name: str, numerics: Numerics, batch: int) -> Any:
        asked.append(f"{name} in {numerics.dtype}")
        return sketches(self, name, numerics, batch)

    monkeypatch.setattr(honest_run.Rerun, "sketches", noted)
    monkeypatch.setattr(honest_run.Plugin, "backend", lambda self, config: Narrow())
    be_honest(run.honest.model_copy(update={"reference_passes": ("live",)}))
    inside = asked[asked.index("full") + 1 : asked.index("as before")]
    assert inside == ["branches in torch.float32", "live in torch.float32"]
    assert asked.count("full") == 1


@pytest.mark.parametrize("breaks", ["branches", "head"])
def test_a_device_without_bfloat16_loses_the_border_to_it_and_keeps_the_others(
    worked: Callable[..., Audited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    run = worked(precision=FP32).copied(tmp_path)
    sketches = honest_run.Rerun.sketches

    def narrow(self: Any, name: str, numerics: Numerics, batch: int) -> Any:
        if (numerics.dtype, name) == (torch.bfloat16, breaks):
            raise TypeError("no bfloat16 here")
        return sketches(self, name, numerics, batch)

    monkeypatch.setattr(honest_run.Rerun, "sketches", narrow)
    line = be_honest(run.honest)
    assert {audited.HONEST, audited.REPLAY} <= set(line.announced())
    assert {one.partition("/")[0] for one in made(run)} == {"FP32", "TF32"}
    lost = [message.what for message in line.sent if isinstance(message, Unmade)]
    assert lost == ["the border to BF16", "the border to FP8"]


class _Dropping:
    """An honest run whose steps with dropout are these."""

    inputs = SimpleNamespace(shape=SimpleNamespace(dropout=0.1))

    def places(self, passes: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return {"step-4": torch.tensor([5, 6, 7, 8, 9])}

    def dropped(self, name: str, where: torch.Tensor, count: int, device: str) -> torch.Tensor:
        assert name == "step-4"
        draw = torch.arange(-1, count).float().view(-1, 1)
        return where.float() + draw * torch.tensor([0.0, 0.0, 3.0, 4.0, 0.0])


def _dropped(order: Any, line: Replayed, rerun: Any = _Dropping) -> dict[str, torch.Tensor]:
    segments = [SimpleNamespace(gradients=2), SimpleNamespace(gradients=3)]
    steps = SimpleNamespace(steps=(SimpleNamespace(index=4, segments=segments),))
    return honest_run.dropped_steps(line, order, rerun(), steps)


def test_of_a_step_with_dropout_the_mean_is_kept_and_how_far_each_honest_one_is_off() -> None:
    config = run_config(precision=BF16)
    line = Replayed(())
    order = SimpleNamespace(config=config, judged=(4,), passes=("live", "step-4"))
    found = _dropped(order, line)
    names = (audited.DROPPED_ALIKE, audited.DROPPED, audited.DROPPED_APART)
    alike, mean, apart = (found[f"BF16/step-4/{name}"] for name in names)
    assert alike.tolist() == [5.0, 6.0, 4.0, 4.0, 9.0]
    assert mean.tolist() == [5.0, 6.0, 11.5, 14.0, 9.0]
    assert apart.tolist() == [[0.0, 7.5], [0.0, 2.5], [0.0, 2.5], [0.0, 7.5]]
    order.judged = ()
    assert _dropped(order, line) == {}


def test_steps_with_dropout_that_fail_leave_the_rest_of_the_honest_run() -> None:
    class Failing(_Dropping):
        def dropped(self, name: str, where: torch.Tensor, count: int, device: str) -> torch.Tensor:
            raise RuntimeError("no random numbers here")

    order = SimpleNamespace(config=run_config(precision=BF16), judged=(4,), passes=("step-4",))
    line = Replayed(())
    assert _dropped(order, line, Failing) == {}
    (lost,) = [message for message in line.sent if isinstance(message, Unmade)]
    assert lost.what == "the honest steps with dropout"
