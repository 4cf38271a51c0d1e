"""A bundle's run made again without a plugin: the worker's bits, from the seeds alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmb.config import BF16, Mode
from llmb.errors import BundleRefusedError
from llmb.observe.weights_file import WeightsFile
from llmb.processes import replay_run
from llmb.records import audited
from llmb.records.audited import LedgerEvidence, StepsEvidence
from llmb.wire.messages import Done, ReplayOrder, Tick
from tests.unit.builders_audit import DRAWN, END, Audited, Line, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")


@pytest.fixture
def run(worked: Callable[..., Audited], tmp_path) -> Audited:
    return worked(precision=BF16).copied(tmp_path)


def order_of(run: Audited, **changes: Any) -> ReplayOrder:
    (run.scratch / audited.LIVE_WEIGHTS).unlink(missing_ok=True)
    kernel = StepsEvidence.model_validate_json((run.folder / audited.STEPS).read_bytes()).steps[0]
    ledger = LedgerEvidence.model_validate_json((run.folder / audited.LEDGER).read_bytes())
    values: dict[str, Any] = {
        "config": run.config,
        "stream": run.honest.stream,
        "foreach": kernel.foreach,
        "fused": kernel.fused,
        "ledger": ledger,
        "places": tuple(map(DRAWN.places, range(END + 1))),
        "fences": (5, 10),
        "evidence_folder": str(run.folder),
        "scratch_folder": str(run.scratch),
        "digests": run.honest.digests,
    }
    return ReplayOrder(**{**values, **changes})


def made(order: ReplayOrder) -> tuple[dict[str, torch.Tensor], Line]:
    line = Line(order)
    replay_run.answer(line)
    assert isinstance(line.sent[-1], Done)
    return load_file(Path(order.scratch_folder) / audited.REPLAYED), line


def shown(run: Audited) -> torch.Tensor:
    return load_file(run.folder / audited.LEDGER_VALUES)[audited.ROWS]


def test_the_rows_are_the_workers(run: Audited) -> None:
    found, line = made(order_of(run))
    assert torch.equal(found[audited.ROWS], shown(run))
    assert [m.index for m in line.sent if isinstance(m, Tick)] == [*range(END + 1)]


def test_of_places_that_the_nonce_does_not_give_the_weights_are_not_sampled(run: Audited) -> None:
    """A plugin that stores parameters in another order says so by the places of its rows."""
    assert audited.SAMPLES not in made(order_of(run, places=tuple(range(END + 1))))[0]


def test_losses_samples_and_last_weights_are_those_of_the_run(run: Audited) -> None:
    found, line = made(order_of(run))
    assert found[audited.LOSSES].shape == (END + 1,)
    parameters = list(run.model.named_parameters())
    assert found[audited.SAMPLES].shape == (2, 16 * len(parameters))
    digest = line.announced(scratch=True)[audited.LIVE_WEIGHTS]
    with WeightsFile(run.scratch / audited.LIVE_WEIGHTS, digest) as file:
        right = run.reference.digests[audited.LIVE_WEIGHTS]
        assert digest == right  # the worker's, bit for bit
        assert file.names == tuple(name for name, _ in parameters)


def test_without_steps_the_weights_are_the_first(run: Audited) -> None:
    found, line = made(order_of(run, stream=None, fences=(1,)))
    assert [*found] == [audited.SAMPLES]
    assert (
        line.announced(scratch=True)[audited.LIVE_WEIGHTS]
        != (run.reference.digests[audited.LIVE_WEIGHTS])
    )


def test_calls_are_made_again_with_the_tokens_that_were_drawn(worked, tmp_path) -> None:
    changes = {"prompt_length": 3, "new_tokens": 5, "generate_scope": "step"}
    run = worked(mode=Mode.GENERATE, **changes).copied(tmp_path)
    order = ReplayOrder(
        config=run.config,
        calls=run.honest.calls.model_copy(update={"calls": run.honest.calls.calls[:3]}),
        evidence_folder=str(run.folder),
        scratch_folder=str(run.scratch),
        digests=run.honest.digests,
    )
    right = shown(run)[:3]  # made with a cache
    assert (made(order)[0][audited.ROWS] - right).norm() < 1e-3 * right.norm()


def other_ledger(run: Audited, change: Callable[[torch.Tensor], torch.Tensor]) -> ReplayOrder:
    """Return an order whose rows are those of one stored parameter that holds the whole model."""
    rows, width = END + 1, 64
    total = sum(p.numel() for p in run.model.parameters())
    steps = torch.arange(rows)[:, None]
    places = (torch.arange(width) * (total // width) + steps).long()
    path = run.folder / audited.LEDGER_VALUES
    save_file({audited.ROWS: torch.zeros(rows, width), audited.WHERE: change(places)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    segments = [{"name": "flat", "elements": width}]
    ledger = LedgerEvidence.model_validate({"segments": segments, "moments": []})
    return order_of(run, ledger=ledger, digests={audited.LEDGER_VALUES: digest})


def test_of_parameters_in_one_the_bundle_says_where_each_element_lies(run: Audited) -> None:
    found, _ = made(other_ledger(run, lambda places: places))
    assert found[audited.ROWS].shape == (END + 1, 64)
    assert found[audited.ROWS].abs().max() > 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda places: places.clamp(max=63), "names an element twice"),
        (lambda places: places + 10**9, "the model does not have"),
        (lambda places: torch.arange(64).expand(END + 1, 64).contiguous(), "parameters of the"),
        (lambda places: places[:, :9].contiguous(), "have places"),
    ],
    ids=["twice", "outside", "one parameter", "another width"],
)
def test_places_that_are_no_sample_of_the_model_are_refused(run, change, told) -> None:
    with pytest.raises(BundleRefusedError, match=told):
        replay_run.make(Line(), other_ledger(run, change))
