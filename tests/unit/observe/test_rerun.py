"""A pass made again has the weights, tokens, edits and signs of the worker's, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llmb.config import BF16, FP16, FP32, TF32, Parallelism, Precision
from llmb.errors import RunFailedError
from llmb.formats import KNOWN, Element, Format
from llmb.observe import probes, rerun, weights_file
from llmb.observe.passes import LIVE, Numerics, Samples, Sketches, plain_pass
from llmb.observe.rerun import (
    Rerun,
    RerunInputs,
    autocast_of,
    borders,
    how,
    how_border,
    loss_scale,
    wide,
)
from llmb.records.audited import LIVE_WEIGHTS, judged_pass, judged_weights
from llmb.reference.data import Batch, random_tokens
from llmb.reference.models import build
from tests.unit.builders_audit import SMALL
from tests.unit.builders_runtime import run_config

CONFIG = run_config(batch_size=4)
SEED = 17
PLAIN = Numerics(torch.float32, "cpu")
STEP, STEP_WEIGHTS = judged_pass(7), judged_weights(7)
TOKENS = {LIVE: 101, STEP: 202}
FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
MXFP4 = Precision(name="MXFP4", bits=4, dtype="bfloat16")
DATA = {known.name: known.format for known in KNOWN}
FOUR = " ".join(known.name for known in KNOWN if known.bits < 5)
NAMES = [known.name for known in KNOWN]
BELOW_FP8 = " ".join(NAMES[NAMES.index("FP8") + 1 :])
FIVE = Format(Element(2, 2, 7.0, scale="e8m0", block=32))


def weights(seed: int) -> dict[str, Tensor]:
    model = build(SMALL, seed, torch.bfloat16)
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.fixture
def digests(tmp_path: Path) -> dict[str, str]:
    return {
        name: weights_file.write(tmp_path / name, weights(seed).items())
        for name, seed in ((LIVE_WEIGHTS, 1), (STEP_WEIGHTS, 2))
    }


def opened(folder: Path, digests: dict[str, str], *, shared: bool = False, **changes: Any) -> Rerun:
    config = CONFIG.model_copy(update=changes)
    inputs = RerunInputs(config, SMALL, SEED, TOKENS, folder, folder, digests, (7,))
    return Rerun(inputs, shared=shared)


def by_hand(name: str, seed: int, ids: Tensor, fmt: Format | None = None) -> dict[str, Tensor]:
    collect, values = Sketches(name, SEED, SMALL), weights(seed)
    if name in probes.PROBES:
        for target, edit in probes.edits(name, SMALL, "bfloat16").items():
            values[target] = edit(values[target])
    numerics = Numerics(torch.float32, "cpu", fmt)
    loss = plain_pass(values.__getitem__, SMALL, Batch(ids, ids), numerics, collect)
    collect.loss(torch.tensor(loss))
    return collect.tensors


def tokens(seed: int) -> Tensor:
    return random_tokens(seed, 4, SMALL.sequence_length, SMALL.vocab_size)


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return set(found) == set(expected) and all(torch.equal(found[k], expected[k]) for k in found)


@pytest.mark.parametrize("fmt", [None, DATA["FP8"]], ids=["plain", "FP8"])
def test_the_last_step_is_made_again_from_the_live_weights_and_the_streams_own_tokens(
    tmp_path: Path, digests: dict[str, str], fmt: Format | None
) -> None:
    with opened(tmp_path, digests) as again:
        found = again.sketches(LIVE, Numerics(torch.float32, "cpu", fmt), 4)
    assert equal(found, by_hand(LIVE, 1, tokens(TOKENS[LIVE]), fmt))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_probe_is_made_again_with_its_edits_and_one_sequence_as_often_as_asked(
    tmp_path: Path, digests: dict[str, str], batch: int
) -> None:
    with opened(tmp_path, digests) as again:
        found = again.sketches(probes.BRANCHES, PLAIN, batch)
    ids = probes.batch(SEED, probes.BRANCHES, SMALL).repeat(batch).ids
    assert equal(found, by_hand(probes.BRANCHES, 1, ids))


def test_replicas_that_add_up_micro_batches_have_probes_of_one_sequence_all_the_same(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    narrow = Numerics(torch.bfloat16, "cpu")
    replicas = {"parallelism": Parallelism(dp_replicate=2), "accumulate": 2}
    with opened(tmp_path, digests, **replicas) as again, opened(tmp_path, digests) as alone:
        assert again.inputs.config.added_up == 2
        found, own = (one.sketches(probes.BRANCHES, narrow, 1) for one in (again, alone))
    assert equal(found, own)


def test_the_head_probe_needs_no_layers_and_shows_the_same_of_what_is_left(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    with opened(tmp_path, digests) as again:
        found = again.sketches(probes.HEAD, PLAIN, 1)
    expected = by_hand(probes.HEAD, 1, probes.batch(SEED, probes.HEAD, SMALL).ids)
    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "loss")
    assert set(found) == {f"head/{name}" for name in names}
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-8)


def test_edits_are_those_of_the_format_the_run_computes_in(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    with opened(tmp_path, digests, precision=FP16) as again:
        strong = again.sketches(probes.BRANCHES, PLAIN, 1)
    with opened(tmp_path, digests) as again:
        faint = again.sketches(probes.BRANCHES, PLAIN, 1)
    out = f"branches/out/{probes.parts(SMALL).out[0]}"
    assert strong[out].norm() > 100 * faint[out].norm()


def test_samples_are_of_the_audited_steps_weights_and_tokens(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    where = torch.arange(0, 9000, 13)
    with opened(tmp_path, digests) as again:
        found = again.samples(where, PLAIN, STEP)
    sizes = {name: value.numel() for name, value in weights(2).items()}
    samples = Samples(where, sizes)
    values = weights(2)
    plain_pass(
        values.__getitem__,
        SMALL,
        Batch(*(tokens(TOKENS[STEP]),) * 2),
        PLAIN,
        samples,
    )
    assert torch.equal(found, samples.values)
    assert again.sizes == sizes


def test_samples_of_an_honest_run_in_a_format_are_rounded_to_it(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    where = torch.arange(0, 9000, 13)
    with opened(tmp_path, digests) as again:
        plain = again.samples(where, PLAIN, STEP)
        rough = again.samples(where, Numerics(torch.float32, "cpu", DATA["FP8"]), STEP)
    error = float((plain - rough).norm() / plain.norm())
    assert 2**-6 < error < 0.5


def test_of_mixed_precision_the_second_honest_step_is_the_train_loops_own(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    with opened(tmp_path, digests, precision=mixed) as again:
        found = again.with_wide_loss("host", {LIVE: 2}, {STEP: torch.arange(9)}, "cpu")
    model, ids = build(SMALL, 1, torch.float32), tokens(TOKENS[LIVE])
    for name, value in weights(1).items():
        model.get_parameter(name).data.copy_(value)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids)
    loss.backward()
    expected = Sketches(LIVE, SEED, SMALL)
    expected.loss(loss)
    for name, parameter in model.named_parameters():
        expected.add(name, parameter.grad)
    whose = "host with its loss in float32"
    assert found.pop(f"{whose}/{STEP}").shape == (9,)
    assert equal(found, {f"{whose}/{name}": value for name, value in expected.tensors.items()})
    with opened(tmp_path, digests, precision=FP32) as again:
        assert again.with_wide_loss("host", {LIVE: 2}, {}, "cpu") == {}


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        (BF16, "cpu", None),
        (BF16.model_copy(update={"master_weights": True}), "cpu", torch.bfloat16),
        (BF16.model_copy(update={"master_weights": True}), "meta", None),
        (FP16.model_copy(update={"master_weights": True}), "cpu", None),
        (FP8.model_copy(update={"master_weights": True}), "cpu", None),
    ],
)
def test_autocast_is_that_of_bf16_over_float32_weights(
    precision: Precision, device: str, expected: torch.dtype | None
) -> None:
    assert autocast_of(precision, device) is expected


@pytest.mark.parametrize(
    ("scaled", "dtype", "name", "copies"),
    [
        (True, torch.float16, LIVE, 32),
        (True, torch.float16, STEP, 32),
        (True, torch.float32, LIVE, 1),  # the reference
        (False, torch.float16, LIVE, 1),
        (True, torch.float16, probes.HEAD, 512),  # one sequence four times: 16 for each token
        (False, torch.float16, probes.HEAD, 512),
        (True, torch.float32, probes.HEAD, 1),
    ],
)
def test_where_the_run_scales_its_loss_so_do_its_honest_passes_in_fp16(
    tmp_path: Path,
    digests: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    scaled: bool,
    dtype: torch.dtype,
    name: str,
    copies: int,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(rerun, "plain_pass", lambda *_, **how: asked.append(how["copies"]) or 0.0)
    precision = FP16.model_copy(update={"master_weights": scaled})
    with opened(tmp_path, digests, precision=precision, mixed_precision=scaled) as again:
        again.sketches(name, Numerics(dtype, "cpu"), 4)
    assert 4 * SMALL.sequence_length == 48
    assert asked == [copies]


@pytest.mark.parametrize(
    ("size", "scale"), [((1, 1), 1), ((24, 256), 4096), ((128, 256), 2**15), ((512, 256), 2**15)]
)
def test_the_scale_is_the_tokens_rounded_down_and_a_float16(
    size: tuple[int, int], scale: int
) -> None:
    ids = torch.zeros(size, dtype=torch.int64)
    assert loss_scale(Batch(ids, ids)) == scale
    assert torch.tensor(scale, dtype=torch.float16).isfinite()


def test_the_live_weights_can_be_read_one_by_one(tmp_path: Path, digests: dict[str, str]) -> None:
    with opened(tmp_path, digests) as again:
        assert torch.equal(again.live("lm_head.weight"), weights(1)["lm_head.weight"])
        assert again.live("no.such.weight") is None
    with opened(tmp_path, {STEP_WEIGHTS: digests[STEP_WEIGHTS]}) as again:
        assert again.live("lm_head.weight") is None


def flip_the_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def step(again: Rerun) -> Tensor:
    return again.samples(torch.arange(3), PLAIN, STEP)


@pytest.mark.parametrize("name", [LIVE_WEIGHTS, STEP_WEIGHTS])
def test_weights_that_were_altered_are_refused_by_the_pass_that_reads_them(
    tmp_path: Path, digests: dict[str, str], name: str
) -> None:
    flip_the_last_byte(tmp_path / name)
    with opened(tmp_path, digests) as again:
        read = {
            LIVE_WEIGHTS: lambda: again.sketches(LIVE, PLAIN, 2),
            STEP_WEIGHTS: lambda: step(again),
        }[name]
        with pytest.raises(RunFailedError, match=f"{name} .* altered"):
            read()


def test_while_a_vendors_code_runs_beside_it_every_pass_checks_its_weights_again(
    tmp_path: Path, digests: dict[str, str]
) -> None:
    with opened(tmp_path, digests, shared=True) as again:
        step(again)
        flip_the_last_byte(tmp_path / STEP_WEIGHTS)
        with pytest.raises(RunFailedError, match="altered"):
            step(again)


def test_a_file_that_nobody_announced_is_not_read(tmp_path: Path, digests: dict[str, str]) -> None:
    del digests[STEP_WEIGHTS]
    with opened(tmp_path, digests) as again, pytest.raises(KeyError):
        again.samples(torch.arange(3), PLAIN, STEP)


# -- memory ---------------------------------------------------------------------------------


class Short:
    """A device on which a batch fits only in so many pieces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, needed: int, message: str) -> None:
        self.tried: list[int] = []

        def run(*given: Any, parts: int, **rest: Any) -> float:
            self.tried.append(parts)
            if parts < needed:
                raise RuntimeError(message)
            return plain_pass(*given, parts=parts, **rest)

        monkeypatch.setattr(rerun, "plain_pass", run)


def test_a_batch_that_does_not_fit_is_taken_in_ever_smaller_pieces(
    tmp_path: Path, digests: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numerics = Numerics(torch.float64, "cpu")
    with opened(tmp_path, digests) as again:
        whole = again.sketches(LIVE, numerics, 4)
        sampled = again.samples(torch.arange(50), numerics, STEP)
        short = Short(monkeypatch, 4, "DefaultCPUAllocator: can't allocate memory")
        pieces = again.sketches(LIVE, numerics, 4)
        found = again.samples(torch.arange(50), numerics, STEP)
        torch.testing.assert_close(found, sampled, rtol=1e-6, atol=1e-12)
    assert short.tried == [1, 2, 4] * 2
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-5, atol=1e-9)


def test_one_sequence_that_does_not_fit_is_out_of_memory(
    tmp_path: Path, digests: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Short(monkeypatch, 100, "X out of memory")
    with opened(tmp_path, digests) as again, pytest.raises(RuntimeError, match="out of memory"):
        again.sketches(LIVE, PLAIN, 4)
    assert short.tried == [1, 2, 4]


def test_another_error_is_no_reason_to_try_again(
    tmp_path: Path, digests: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Short(monkeypatch, 100, "shape mismatch")
    with opened(tmp_path, digests) as again, pytest.raises(RuntimeError, match="shape"):
        again.sketches(LIVE, PLAIN, 4)
    assert short.tried == [1]


# -- formats --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (FP32, (torch.float32, None)),
        (TF32, (torch.float32, DATA["TF32"])),
        (FP16, (torch.float16, None)),
        (BF16, (torch.bfloat16, None)),
        (FP8, (torch.bfloat16, DATA["FP8"])),
        (MXFP4, (torch.bfloat16, DATA["MXFP4"])),
        (MXFP4.model_copy(update={"dtype": "float32"}), (torch.float32, DATA["MXFP4"])),
        (MXFP4.model_copy(update={"format": DATA["FP8"]}), (torch.bfloat16, DATA["MXFP4"])),
        (MXFP4.model_copy(update={"name": "A4", "format": FIVE}), (torch.bfloat16, FIVE)),
        (BF16.model_copy(update={"master_weights": True}), (torch.bfloat16, None)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_honest_run_computes_in_its_formats_own_type(
    precision: Precision, expected: tuple[torch.dtype, Format | None]
) -> None:
    assert how(precision, "cpu") == Numerics(expected[0], "cpu", expected[1])


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (FP32, "TF32 BF16 FP8"),
        (TF32, "BF16 FP8"),
        (FP16, "BF16 FP8"),
        (BF16, "FP8"),
        (FP8, BELOW_FP8),
        (MXFP4.model_copy(update={"name": KNOWN[-1].name}), ""),
        (MXFP4.model_copy(update={"name": "A5", "bits": 5, "format": FIVE}), FOUR),
        (MXFP4.model_copy(update={"name": "A4"}), ""),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_run_is_held_against_narrower_classes_widest_first_and_each_can_be_made(
    precision: Precision, expected: str
) -> None:
    assert [border.name for border in borders(precision)] == expected.split()
    for border in borders(precision):
        numerics = how_border(border, "cpu")
        assert numerics.dtype.is_floating_point
        assert (numerics.emulated is None) == (border.name == "BF16")


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(FP32, torch.float64), (TF32, torch.float64), (BF16, torch.float32), (FP16, torch.float32)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_reference_is_wider_than_the_run(precision: Precision, expected: torch.dtype) -> None:
    assert wide(precision, "cpu") == Numerics(expected, "cpu")


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (BF16, Numerics(torch.bfloat16, "cpu")),
        (FP16.model_copy(update={"master_weights": True}), Numerics(torch.float16, "cpu")),
        (
            BF16.model_copy(update={"master_weights": True}),
            Numerics(torch.float32, "cpu", wide_loss=True, autocast=torch.bfloat16),
        ),
    ],
)
def test_steps_with_dropout_have_masks_of_their_own_and_compute_as_the_run_does(
    tmp_path: Path,
    digests: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
    expected: Numerics,
) -> None:
    asked: list[tuple[Numerics, tuple[int, ...]]] = []

    def noted(
        self: Rerun, where: Tensor, numerics: Numerics, name: str, masks: Sequence[int]
    ) -> Tensor:
        assert name == STEP
        asked.append((numerics, tuple(masks)))
        return where.float()

    monkeypatch.setattr(Rerun, "samples", noted)
    with opened(tmp_path, digests, precision=precision) as again:
        found = again.dropped(STEP, torch.arange(5), 3, "cpu")
    assert found.shape == (4, 5)
    assert [numerics for numerics, _ in asked] == [expected] * 4
    assert len({masks for _, masks in asked} - {()}) == 3, (
        "a model without dropout has no own masks"
    )
