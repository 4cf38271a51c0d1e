"""What was made again is held to the evidence: honest runs are near, copies are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, load_file, save

from llmb.audit.bench import Bench
from llmb.audit.recomputed import Compared, Made, compared, same_first_weights
from llmb.config import BF16
from llmb.processes import reference_run, replay_run
from llmb.records import arrays, audited, evidence
from llmb.records.audited import PristineEvidence
from llmb.wire.messages import ReplayOrder
from tests.unit.builders_audit import END, Audited, Line, small_vocabulary, worked
from tests.unit.processes.test_replay_run import order_of

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
LEDGER, GRADIENTS, FENCES = (
    evidence.path(0, name) for name in (audited.LEDGER_VALUES, audited.GRADIENTS, evidence.FENCES)
)


@pytest.fixture
def run(worked: Callable[..., Audited], tmp_path) -> Audited:
    found = worked(precision=BF16).copied(tmp_path)
    found.read()
    return found


PASSES = ("live", "branches", "head")


def made_of(run: Audited, tmp_path, steps: int = END + 1, **changes) -> Made:
    """Make the run again, as ``llmb verify --recompute`` does, in folders of its own."""
    for name in ("own", "own scratch"):
        (tmp_path / name).mkdir()
    stream = run.honest.stream.model_copy(
        update={"token_seeds": run.honest.stream.token_seeds[:steps], "least": steps, **changes}
    )
    fences = tuple(n for n in (5, 10) if n < steps)
    order: ReplayOrder = order_of(
        run, stream=stream, fences=fences, scratch_folder=str(tmp_path / "own scratch")
    )
    line = Line()
    replay_run.make(line, order)
    digest = line.announced(scratch=True)[audited.LIVE_WEIGHTS]
    reference_run.make(
        Line(),
        run.reference.model_copy(
            update={
                "evidence_folder": str(tmp_path / "own"),
                "scratch_folder": order.scratch_folder,
                "digests": {audited.LIVE_WEIGHTS: digest},
                "stored_dtypes": {},
                "passes": PASSES,
                "judged": (),
            }
        ),
    )
    shown = load_file(tmp_path / "own scratch" / audited.REPLAYED)
    pristine = (tmp_path / "own" / audited.PRISTINE).read_bytes()
    return Made(
        rows=shown[audited.ROWS].flatten().tolist(),
        losses=shown[audited.LOSSES].tolist(),
        samples=shown[audited.SAMPLES].flatten().tolist() if audited.SAMPLES in shown else (),
        reference=arrays.read((tmp_path / "own" / audited.REFERENCE).read_bytes()),
        pristine=PristineEvidence.model_validate_json(pristine),
        steps=steps,
        complete=steps == END + 1,
        fences=tuple(n for n in (5, 10) if n < steps),
        stable=END + 1,
        near=True,
        near_the_last=True,
    )


def bench_of(run: Audited, made: Made, steps: tuple[int, ...] = (5, 10)) -> Bench:
    """Return the evidence, with fences that show the losses and samples in ``made``."""
    timing = run.facts.repeats[0].model_copy(update={"fence_steps": steps})
    fences = {
        "loss": torch.tensor([made.losses[n - 1] for n in steps]),
        "parameters": torch.tensor(made.samples).view(len(steps), -1),
    }
    files = {FENCES: save(fences), **run.files}
    return Bench(files.get, replace(run.facts, repeats=[timing]), 0)


def by_what(found: list[Compared]) -> dict[str, Compared]:
    return {one.what: one for one in found}


def test_an_honest_run_is_near_in_everything_that_is_compared(run, tmp_path) -> None:
    made = made_of(run, tmp_path)
    bench = bench_of(run, made)
    found = by_what([*compared(bench, made)])
    assert [*found] == [
        "weights after steps 5 to 10",
        "losses of steps 4 to 9",
        f"gradients of steps 0 to {END}",
        f"exp_avg of steps 0 to {END}",
        f"exp_avg_sq of steps 0 to {END}",
        "the last step",
        "probe branches",
        "probe head",
    ]
    assert not any(one.faults for one in found.values())
    assert all(one.measured < 0.5 * one.limit for one in found.values())
    assert same_first_weights(bench, made)[0] == same_first_weights(bench, made)[1]


def test_with_a_few_steps_the_last_step_and_probes_are_held_to_wider_limits(run, tmp_path) -> None:
    made = made_of(run, tmp_path, steps=6)
    found = by_what([*compared(bench_of(run, made, (5,)), made)])
    assert not any(one.faults for one in found.values())
    assert found["probe branches"].limit == 0.75
    assert found["the last step"].limit == 0.75


def test_a_last_step_of_weights_that_have_moved_is_left_to_the_probes(run, tmp_path) -> None:
    made = replace(made_of(run, tmp_path, steps=6), near_the_last=False)
    found = by_what([*compared(bench_of(run, made, (5,)), made)])
    assert "the last step" not in found
    assert {"probe branches", "probe head"} < {*found}


def test_another_nonces_tokens_are_refused_by_the_step_that_they_are_of(run, tmp_path) -> None:
    tokens = (*(1000 + n for n in range(6)), *(5000 + n for n in range(END - 5)))
    made = made_of(run, tmp_path, token_seeds=tokens)
    found = by_what([*compared(bench_of(run, made), made)])
    (gradients,) = (one for one in found.values() if one.what.startswith("gradients"))
    assert gradients.measured > 10 * gradients.limit
    assert gradients.faults[0].startswith("the gradients of step 6 are 1.")


@pytest.mark.parametrize("name", ["live", "branches", "head"])
def test_numbers_of_another_pass_are_refused(run, tmp_path, name: str) -> None:
    made = made_of(run, tmp_path)
    seen = load(run.files[GRADIENTS])
    generator = torch.Generator().manual_seed(1)
    for key, value in seen.items():
        if key.startswith(f"{name}/"):
            order = torch.randperm(value.numel(), generator=generator)
            seen[key] = value.flatten()[order].view(value.shape)
    run.files[GRADIENTS] = save(seen)
    bad = [one for one in compared(bench_of(run, made), made) if one.faults]
    what = "the last step" if name == "live" else f"probe {name}"
    assert [one.what for one in bad] == [what]
    assert 1.0 < bad[0].measured < 1.8


def test_samples_of_other_weights_and_other_losses_are_refused(run, tmp_path) -> None:
    made = made_of(run, tmp_path)
    bench = bench_of(run, made)
    samples = torch.tensor(made.samples)
    other = replace(made, samples=(samples * 0.3).tolist(), losses=[n + 1 for n in made.losses])
    bad = {one.what: one.faults for one in compared(bench, other) if one.faults}
    assert [*bad] == ["weights after steps 5 to 10", "losses of steps 4 to 9"]
    assert "weights after step 5" in bad["weights after steps 5 to 10"][0]
    assert "the loss of step 4" in bad["losses of steps 4 to 9"][0]


def test_where_weights_have_moved_too_far_passes_and_late_losses_are_left_out(
    run, tmp_path
) -> None:
    made = replace(made_of(run, tmp_path), near=False, stable=7)
    found = by_what([*compared(bench_of(run, made), made)])
    assert "probe branches" not in found
    assert "losses of steps 4" in found


def test_a_limit_is_never_so_wide_that_a_copy_fits_in(run, tmp_path) -> None:
    made = made_of(run, tmp_path)
    rough = {k: [9.0 * x for x in v] for k, v in made.reference.items() if k.startswith("host")}
    made = replace(made, reference={**made.reference, **rough})
    found = [*compared(bench_of(run, made), made)]
    assert max(one.limit for one in found) == pytest.approx(0.75)


def test_without_gradients_of_the_last_step_nothing_is_accepted(run, tmp_path) -> None:
    made = made_of(run, tmp_path)
    del run.files[GRADIENTS]
    with pytest.raises(ValueError, match=r"no gradients\.safetensors"):
        list(compared(bench_of(run, made), made))


def test_numbers_that_are_none_do_not_pass(run, tmp_path) -> None:
    made = made_of(run, tmp_path)
    values = load(run.files[LEDGER])
    values[audited.ROWS][3] = math.nan
    run.files[LEDGER] = save(values)
    found = by_what([*compared(bench_of(run, made), made)])
    assert found[f"gradients of steps 0 to {END}"].faults
