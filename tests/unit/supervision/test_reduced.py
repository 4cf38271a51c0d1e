"""Evidence made smaller: what judges use stays, and nothing stands in for what nobody compared."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from llmb import workloads
from llmb.audit.distance import gap
from llmb.config import BF16, FP32, Precision
from llmb.errors import RunFailedError
from llmb.records import arrays, audited
from llmb.records.audited import LedgerEvidence, LedgerSegment
from llmb.records.draws import Draws
from llmb.supervision.reduced import EvidenceFacts, reduced, smaller

A, B, LOSS = "live/a.weight", "branches/b.weight", "live/loss"


def randoms(seed: int) -> Tensor:
    return torch.randn(1024, generator=torch.Generator().manual_seed(seed))


def right() -> dict[str, Tensor]:
    return {A: randoms(1), B: randoms(2), LOSS: torch.tensor([9.5])}


def near(seed: int, off: float = 0.006) -> dict[str, Tensor]:
    noise = enumerate(right().items())
    return {k: v + off * randoms(seed + n)[: len(v)] for n, (k, v) in noise}


def passes(worker: dict[str, Tensor] | None = None) -> dict[str, bytes]:
    """Return the files of passes: a worker, an honest run and a host's, each a bit off."""
    honest = {f"BF16/{name}": value for name, value in near(20).items()}
    host = {f"host/{name}": value for name, value in near(30).items()}
    seen = near(10) if worker is None else worker
    seen = seen | {"head/model.layers.0.w": randoms(50)}
    return {
        audited.GRADIENTS: save(seen),
        audited.HONEST: save(honest),
        audited.REFERENCE: save(right() | host),
    }


def run_of(precision: Precision = BF16) -> EvidenceFacts:
    return EvidenceFacts(precision, trains=True, steps=0, drawn=None)


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
def test_distances_stay_and_sizes_fall(precision: Precision) -> None:
    files = passes()
    found = smaller(files, run_of(precision))
    shown = arrays.read(found[audited.GRADIENTS])
    told = arrays.read_reduced(found[audited.REFERENCE])
    reference = arrays.resolved(told, shown)
    honest = arrays.read_reduced(found[audited.HONEST])
    for name, value in right().items():
        if name == LOSS:
            assert reference[name][0] == pytest.approx(9.5)
            continue
        for mine, whole in (
            (shown[name], near(10)[name]),
            (honest[f"BF16/{name}"], near(20)[name]),
            (told[f"host/{name}"], near(30)[name]),
        ):
            exact = gap(whole.tolist(), value.tolist()).error
            assert gap(mine, reference[name]).error == pytest.approx(exact, rel=1e-3)
    share = 0.6 if precision is FP32 else 0.4
    assert sum(map(len, found.values())) < share * sum(map(len, files.values()))


def test_a_run_in_32_bits_keeps_its_own_numbers() -> None:
    found = load(smaller(passes(), run_of(FP32))[audited.GRADIENTS])
    assert found[A].equal(near(10)[A])


def test_what_nobody_compares_is_left_out() -> None:
    assert set(load(smaller(passes(), run_of())[audited.GRADIENTS])) == {A, B, LOSS}


@pytest.mark.parametrize("off", [3.0, 1e6, math.nan, math.inf])
def test_a_worker_far_off_does_not_blur_what_is_right(off: float) -> None:
    worker = near(10)
    worker[A] = worker[A] + off
    found = smaller(passes(worker), run_of())
    reference = load(found[audited.REFERENCE])
    assert reference[A].equal(right()[A])
    assert reference[B].dtype is torch.int8


def test_an_honest_run_that_is_no_number_is_infinitely_far_off() -> None:
    honest = {f"BF16/{name}": value for name, value in near(20).items()}
    honest[f"BF16/{A}"][7] = math.nan
    honest[f"BF16/{B}"] = honest[f"BF16/{B}"][:-1]
    files = passes() | {audited.HONEST: save(honest)}
    found = arrays.read_reduced(smaller(files, run_of())[audited.HONEST])
    assert found[f"BF16/{A}"] == found[f"BF16/{B}"] == arrays.Apart((math.inf,))


@pytest.mark.parametrize(
    ("file", "stands_for"),
    [
        (audited.HONEST, arrays.apart(0.0)),
        (audited.REFERENCE, arrays.difference([1.0], [1.0])[0]),
        (audited.STEP_VALUES, arrays.SAME),
        (audited.GRADIENTS, arrays.as_bfloat16(arrays.floats((1,), [1.0]))),
    ],
)
def test_no_process_may_write_what_stands_for_an_array(
    file: str, stands_for: arrays.StoredArray
) -> None:
    files = passes() | {file: arrays.file_of({"live/x": stands_for})}
    with pytest.raises(RunFailedError, match=f"{file} has numbers of type {stands_for.dtype}"):
        smaller(files, run_of())


def test_without_a_reference_everything_stays() -> None:
    files = passes()
    del files[audited.REFERENCE]
    found = smaller(files, run_of())
    assert set(found) == {audited.GRADIENTS}
    assert len(load(found[audited.GRADIENTS])) == 4


def test_what_did_not_change_after_a_step_is_kept_once() -> None:
    after, other = randoms(1), randoms(2)
    seen = {"7/after/value": after, "7/next/value": after.clone(), "7/next/exp_avg": other}
    seen["7/after/exp_avg"] = randoms(3)
    replay = {"7/replayed/value": after.clone(), "7/replayed/exp_avg": other}
    files = {audited.STEP_VALUES: save(seen), audited.REPLAY: save(replay)}
    found = smaller(files, run_of())
    kept = load(found[audited.STEP_VALUES])
    assert (len(kept["7/next/value"]), len(kept["7/next/exp_avg"])) == (0, 1024)
    again = load(found[audited.REPLAY])
    assert (len(again["7/replayed/value"]), len(again["7/replayed/exp_avg"])) == (0, 1024)


def test_a_file_that_was_altered_is_not_made_smaller(tmp_path: Path) -> None:
    files, digests = passes(), dict[str, str]()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    found = reduced(tmp_path, digests, run_of())
    for name, digest in found.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    with pytest.raises(RunFailedError, match=r"gradients\.safetensors is not what the worker"):
        reduced(tmp_path, digests, run_of())


# -- judged steps ---------------------------------------------------------------------------------


def of_judged(recomputed: float | None) -> dict[str, bytes]:
    """Return the evidence of a run of two steps, the second of them judged.

    ``recomputed``: error of the process without the plugin; None if it computed no judged step.
    """
    ledger = LedgerEvidence(segments=(LedgerSegment(name="w", elements=1024),))
    rows = torch.stack([randoms(60), randoms(1) + 0.01 * randoms(61)])
    where = torch.zeros(2, 1024).int()
    alone = {audited.ROWS: torch.zeros(0, 1024)}
    if recomputed is not None:
        alone["step-1"] = randoms(1) + recomputed * randoms(63)
    honest = {"BF16/step-1": randoms(1) + 0.02 * randoms(62)}
    return passes() | {
        audited.HONEST: save({f"BF16/{n}": v for n, v in near(20).items()} | honest),
        audited.DEVICE_REFERENCE: save({A: randoms(1), "step-1": randoms(1)}),
        audited.RECOMPUTED: save(alone),
        audited.LEDGER: ledger.model_dump_json().encode(),
        audited.LEDGER_VALUES: save({audited.ROWS: rows, audited.WHERE: where}),
    }


DRAWN = Draws("5" * 32, workloads.WORKLOADS["llama-1.4b"].recipe.optimizer, ledger=True)
OF_A_STEP = ((audited.HONEST, "BF16/step-1"), (audited.DEVICE_REFERENCE, "step-1"))
JUDGED_RUN = EvidenceFacts(BF16, trains=True, steps=2, drawn=DRAWN, judged=(1,))


@pytest.mark.parametrize("recomputed", [None, 0.1])
def test_of_judged_steps_distances_stay_and_a_process_without_the_plugin_counts(
    recomputed: float | None,
) -> None:
    files = smaller(of_judged(recomputed), JUDGED_RUN)
    found = arrays.read(files[audited.JUDGED])
    for kind, error in ((audited.MEASURED, 0.01), (audited.IS_HONEST, 0.02)):
        distance, length, _ = found[kind]
        assert distance / length == pytest.approx(math.hypot(error, recomputed or 0.0), rel=0.1)
    kept = {**of_judged(recomputed), **files}
    for name in (audited.HONEST, audited.REFERENCE, audited.DEVICE_REFERENCE, audited.RECOMPUTED):
        assert not [key for key in arrays.read_reduced(kept[name]) if "step-1" in key]


def test_where_not_every_step_is_compared_judged_steps_stay_as_each_process_made_them() -> None:
    before = of_judged(None)
    files = smaller(before, replace(JUDGED_RUN, drawn=None))
    assert audited.JUDGED not in files
    honest, right = (arrays.values(arrays.packed(before[f])[n]) for f, n in OF_A_STEP)
    kept = [arrays.read(files[file])[name] for file, name in OF_A_STEP]
    assert [*kept[0]] == pytest.approx([*honest], rel=2**-7)
    assert [*kept[1]] == [*right]


def test_without_a_reference_of_a_judged_step_nothing_stands_for_it() -> None:
    files = of_judged(None)
    del files[audited.DEVICE_REFERENCE]
    assert audited.JUDGED not in smaller(files, JUDGED_RUN)
