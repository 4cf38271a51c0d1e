"""Checks of real runs, read from their directories: each broken promise is named."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmb import supervisor
from llmb.config import BF16, FP16, FP32, Precision, RunRequest
from llmb.errors import RunFailedError, UnavailableError
from llmb.records.canonical import pretty_bytes
from llmb.records.evidence import ParameterDigest, WeightsEvidence
from llmb.sdk.checks import runs
from llmb.sdk.report import SkipError
from llmb.supervision.run_phases import Silent
from llmb.supervision.silence import Silence
from llmb.supervisor import Finished
from tests import builders
from tests.unit.builders_runtime import offer
from tests.unit.sdk.stubs import fails

RECORD = builders.make_record(repeats=1)
STEPS = RECORD.timing.fence_steps


def losses(*changes: tuple[int, float]) -> dict[int, float]:
    """Return the losses of an honest run, with those after some steps replaced."""
    return {**{step: 10.5 - step / 1000 for step in STEPS}, **dict(changes)}


def safetensors(values: Mapping[int, float]) -> bytes:
    data = struct.pack(f"<{len(values)}f", *values.values())
    header = {"loss": {"dtype": "F32", "shape": [len(values)], "data_offsets": [4, 4 + len(data)]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"pad." + data


def digest(name: str, **changes: Any) -> ParameterDigest:
    values = {"shape": (2, 3), "dtype": "bfloat16", "requires_grad": True, "sha256": "0" * 64}
    return ParameterDigest(name=name, **{**values, **changes})


NO_JOULES = {"joules": 0.0, "tokens_per_joule": 1.0, "source": "counter", "scope": "device"}
PRISTINE = (digest("a.weight"), digest("b.weight"))


@dataclass
class StubTrials:
    """Runs that are there already: format -> run, and the one of the reference."""

    made: dict[Precision, Finished]
    honest: Finished | None = None
    errors: dict[str, Exception] = field(default_factory=dict)
    warmup_steps: list[int] = field(default_factory=list)

    def results(self) -> list[tuple[Precision, Finished]]:
        return list(self.made.items())

    finished = results

    def reference(self, warmup_steps: int) -> Finished | None:
        self.warmup_steps.append(warmup_steps)
        return self.honest


Make = Callable[..., Finished]


@pytest.fixture
def finished(tmp_path: Path) -> Make:
    """Make the directory of a run, with one thing or another in it changed."""
    numbers: Iterator[int] = iter(range(100))

    def make(
        found: Mapping[int, float] | None = None,
        processed: tuple[ParameterDigest, ...] = PRISTINE,
        edit: Callable[[dict[str, Any]], object] = lambda data: None,
    ) -> Finished:
        folder = tmp_path / str(next(numbers))
        (folder / "evidence/repeat-0").mkdir(parents=True)
        weights = WeightsEvidence(pristine=PRISTINE, processed=processed)
        (folder / "evidence/repeat-0/weights.json").write_bytes(pretty_bytes(weights))
        (folder / "evidence/repeat-0/fences.safetensors").write_bytes(
            safetensors(losses() if found is None else found)
        )
        return Finished(builders.edited(RECORD, edit), folder)

    return make


def one(run: Finished, precision: Precision = BF16, honest: Finished | None = None) -> StubTrials:
    return StubTrials({precision: run}, honest)


def test_an_honest_run_passes_every_check(finished: Make) -> None:
    trials = one(finished(), FP32, finished())
    assert "FP32" in runs.finish(trials)
    assert {"O1,", "S1,"} <= set(runs.rules(trials).split())
    assert runs.weights(trials) == "2 parameters in 1 runs"
    assert runs.losses(trials) == "FP32 within 0.0e+00 (limit 1.0e-04)"
    assert "TFLOP/s" in runs.ceiling(trials)
    assert runs.figures(trials) == "FP32 20.00 GB, 2500.2 J"


# -- finish -----------------------------------------------------------------------------------


def test_every_format_that_fails_is_named(finished: Make) -> None:
    trials = one(finished())
    trials.errors = {"FP8": RunFailedError("the worker was killed"), "FP4": RunFailedError("no")}
    fails(runs.finish, trials, "FP8: the worker was killed", "FP4: no")


def test_without_any_run_there_is_nothing_to_check() -> None:
    with pytest.raises(SkipError, match="no native format"):
        runs.finish(StubTrials({}))


# -- rules, weights, ceiling, figures ---------------------------------------------------------


@pytest.mark.parametrize("rule", ["O1", "T1", "T2", "S1"])
def test_a_broken_rule_is_named_with_its_message(finished: Make, rule: str) -> None:
    def break_it(data: dict[str, Any]) -> None:
        finding = next(f for f in data["audit"]["findings"] if f["id"] == rule)
        finding.update(status="fail", message="it was seen")

    fails(runs.rules, one(finished(edit=break_it)), f"rule {rule}", "it was seen")


@pytest.mark.parametrize("rule", ["O1", "S1"])
def test_a_rule_that_every_honest_run_passes_must_have_been_observed(
    finished: Make, rule: str
) -> None:
    def forget(data: dict[str, Any]) -> None:
        finding = next(f for f in data["audit"]["findings"] if f["id"] == rule)
        finding["status"] = "not_observed"

    fails(runs.rules, one(finished(edit=forget)), f"rule {rule}")


@pytest.mark.parametrize(
    ("processed", "word"),
    [
        (PRISTINE[:1], "other names"),
        ((*PRISTINE, digest("c.weight")), "other names"),
        ((PRISTINE[0], digest("b.weight", sha256="1" * 64)), "b.weight"),
        ((PRISTINE[0], digest("b.weight", shape=(3, 2))), "b.weight"),
        ((PRISTINE[0], digest("b.weight", requires_grad=False)), "b.weight"),
    ],
)
def test_a_parameter_that_is_not_the_pristine_one_is_named(
    finished: Make, processed: tuple[ParameterDigest, ...], word: str
) -> None:
    fails(runs.weights, one(finished(processed=processed)), word)


def test_a_weight_in_a_wider_type_has_other_bytes(finished: Make) -> None:
    wider = (PRISTINE[0], digest("b.weight", dtype="float32", sha256="1" * 64))
    assert runs.weights(one(finished(processed=wider)))


def test_a_ceiling_that_was_not_measured_is_explained_by_the_log(finished: Make) -> None:
    run = finished(edit=lambda data: data.update(ceilings=None))
    (run.path / "log.txt").write_text("hello\nthe ceiling was not measured: no memory\n")
    fails(runs.ceiling, one(run), "the ceiling was not measured: no memory")


@pytest.mark.parametrize(
    ("field_name", "value", "word"),
    [
        ("peak_memory_bytes", 0, "0 bytes"),
        ("energy", NO_JOULES, "0.0 J"),
    ],
)
def test_a_figure_of_zero_is_refused(
    finished: Make, field_name: str, value: object, word: str
) -> None:
    run = finished(edit=lambda data: data["result"].update({field_name: value}))
    fails(runs.figures, one(run), word)


def test_a_figure_that_was_not_measured_is_said_to_be_unknown(finished: Make) -> None:
    run = finished(edit=lambda data: data["result"].update(peak_memory_bytes=None, energy=None))
    assert runs.figures(one(run)) == "BF16 memory unknown, energy unknown"


# -- losses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "relative", "passes"),
    [
        (FP32, 5e-5, True),
        (FP32, 5e-4, False),
        (Precision(name="TF32", bits=19, dtype="float32"), 1e-3, True),
        (Precision(name="TF32", bits=19, dtype="float32"), 1e-2, False),
        (BF16, 1e-2, True),
        (BF16, 5e-2, False),
        (FP16, 5e-2, True),
        (FP16, 2e-1, False),
        (FP16.model_copy(update={"master_weights": True}), 5e-2, False),
        (Precision(name="FP8", bits=8, dtype="bfloat16"), 0.3, True),
        (Precision(name="FP8", bits=8, dtype="bfloat16"), 0.6, False),
    ],
    ids=str,
)
def test_a_loss_may_differ_by_what_the_bits_explain(
    finished: Make, precision: Precision, relative: float, passes: bool
) -> None:
    last = STEPS[-1]
    run = finished(losses((last, losses()[last] * (1 + relative))))
    trials = one(run, precision, finished())
    if passes:
        assert precision.name in runs.losses(trials)
    else:
        fails(runs.losses, trials, f"after {last} steps", "the same function")


def test_moments_in_fp16_excuse_no_other_loss_before_the_first_step(finished: Make) -> None:
    first = STEPS[0]
    run = finished(losses((first, losses()[first] * 1.05)))
    fails(runs.losses, one(run, FP16, finished()), f"after {first} steps", "the same function")


def test_a_loss_that_is_not_finite_is_refused(finished: Make) -> None:
    run = finished(losses((STEPS[1], math.nan)))
    fails(runs.losses, one(run, honest=finished()), f"nan after {STEPS[1]} steps")


def test_the_reference_warms_up_as_long_as_the_run(finished: Make) -> None:
    trials = one(finished(), honest=finished())
    runs.losses(trials)
    assert trials.warmup_steps == [RECORD.config.warmup_steps]


def test_fewer_bits_never_have_a_closer_limit() -> None:
    limits = [runs.tolerance(bits) for bits in (64, 32, 19, 16, 12, 9, 8, 4, 1)]
    assert limits == sorted(limits)


# -- how runs are made ------------------------------------------------------------------------


def test_native_formats_are_run_once_and_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Make
) -> None:
    asked: list[tuple[str | None, str | None]] = []

    def run(request: RunRequest, output: Path, display: object) -> Finished:
        asked.append((request.plugin, request.precision))
        if request.precision == "FP32" and request.plugin == "acme":
            raise UnavailableError("no")
        return finished()

    monkeypatch.setattr(supervisor, "run", run)
    formats = (BF16, FP32, BF16.model_copy(update={"name": "SLOW", "native": False}))
    trials = runs.Trials(
        RunRequest(plugin="acme", plugin_options={"a": "b"}, device="acme:1", seed=1),
        offer(plugin="acme", precisions=formats),
        tmp_path,
        Silent(),
        limit_s=1.0,
    )
    assert [p.name for p, _ in trials.results()] == ["BF16"]
    assert [p.name for p, _ in trials.finished()] == ["BF16"]
    assert {name: str(error) for name, error in trials.errors.items()} == {"FP32": "no"}
    trials.reference(2)
    trials.reference(2)
    trials.reference(3)
    assert asked == [("acme", "BF16"), ("acme", "FP32"), ("cpu", "FP32"), ("cpu", "FP32")]


@pytest.mark.parametrize("moment", [None, Silence("worker", 60.0, 1.0, on_cpu=True)])
def test_patience_with_a_silent_worker_ends(
    monkeypatch: pytest.MonkeyPatch, moment: Silence | None
) -> None:
    now_s = 0.0
    monkeypatch.setattr(runs.clock, "now_ns", lambda: int(now_s * 1e9))
    watched = runs._Watched(Silent(), "BF16", limit_s=10.0)
    now_s = 9.0
    watched.message(moment)
    watched.phase("training")
    now_s = 18.0
    watched.message(moment)
    now_s = 20.0
    with pytest.raises(RunFailedError, match="silent for 10 s"):
        watched.message(moment)
