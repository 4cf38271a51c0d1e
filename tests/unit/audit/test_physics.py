"""Rule K1 on hand-made rates: below the best product, above it, and where nothing is known."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from llmb.audit import physics
from llmb.records.ceiling import Ceiling, Ceilings, SquareProduct
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import WorkloadFacts
from llmb.records.system import SystemDescription
from llmb.reference.shapes import BertShape, LlamaShape
from llmb.workloads.arithmetic import causal_flops_per_token, flops_per_token
from tests.unit.builders_runtime import host_load, system, timing, workload_facts

SHAPE = LlamaShape()
#: 50 steps of 256 tokens in 5 s: 2560 tokens a second.
RUN = timing([1000] * 5)
RATE = 2560.0 * causal_flops_per_token(SHAPE)
QUIET = system()
BUSY = system(host_load(load_1min=3.0))


def facts(**changes: object) -> WorkloadFacts:
    given = {"shapes": asdict(SHAPE), "flops_per_token": flops_per_token(SHAPE)}
    return workload_facts(tokens_per_step=256).model_copy(update={**given, **changes})


def ceilings(before: float | None, after: float | None = None, attained: float = 1.0) -> Ceilings:
    """Return ceilings whose best product is ``before`` and ``after`` times the run's rate."""
    first, second = (
        Ceiling(
            precision="BF16",
            tokens=256,
            gemms=(),
            flops_per_second=attained * RATE,
            memory_bytes_per_second=1.0,
            squares=(SquareProduct(layout="plain", size=512, at_once=4, best_s=1.0),),
            best_product_flops_per_second=None if best is None else best * RATE,
        )
        for best in (before, before if after is None else after)
    )
    return Ceilings(before=first, after=second)


def judge(
    found: Ceilings | None,
    peak: float | None = None,
    host: SystemDescription = QUIET,
    **changes: object,
) -> Finding:
    given = {"repeats": [RUN], "workload": facts(), "world_size": 1, **changes}
    peak_flops = None if peak is None else peak * RATE
    return physics.finding(**given, ceilings=found, peak_flops=peak_flops, system=host)


def test_a_run_below_the_best_product_passes_and_its_rate_counts_half_the_attention() -> None:
    found = judge(ceilings(1.001))
    assert (found.id, found.level, found.status) == ("K1", Level.BLOCK, Status.PASS)
    assert found.measured == f"{RATE / 1e12:.4g} TFLOP/s, causal attention counted"


def test_a_run_that_beats_the_models_own_products_alone_passes() -> None:
    # Intel's extension was seen at 1.89 of torch's products of the model's shapes.
    assert judge(ceilings(1.1, attained=1 / 1.89)).status is Status.PASS


@pytest.mark.parametrize(
    ("best", "status"), [(1 / 1.049, Status.FLAG), (1 / 1.051, Status.FAIL), (0.5, Status.FAIL)]
)
def test_a_run_above_the_best_product_of_a_quiet_host_is_flagged_and_then_fails(
    best: float, status: Status
) -> None:
    assert judge(ceilings(best)).status is status


@pytest.mark.parametrize("after", [0.5, 0.42])
def test_on_a_busy_or_unsteady_host_it_is_flagged_and_never_fails(after: float) -> None:
    host = BUSY if after == 0.5 else QUIET
    found = judge(ceilings(0.5, after), host=host)
    assert found.status is Status.FLAG
    assert "load 3.0" in found.message or "another ceiling" in found.message


def test_the_higher_of_the_two_ceilings_counts() -> None:
    assert judge(ceilings(0.5, 1.1)).status is Status.PASS
    assert judge(ceilings(1.1, 0.5)).status is Status.PASS


def test_above_a_datasheets_peak_a_run_fails_whatever_was_measured() -> None:
    for found in (ceilings(2.0), None):
        assert judge(found, peak=0.99, host=BUSY).status is Status.FAIL


def test_a_datasheet_alone_acquits_nobody_for_it_is_the_plugins_own_word() -> None:
    assert judge(None, peak=100.0).status is Status.NOT_OBSERVED
    assert judge(ceilings(0.5), peak=100.0).status is Status.FLAG
    assert judge(ceilings(1.1), peak=100.0).status is Status.PASS


def test_the_fastest_repeat_is_judged() -> None:
    fast = timing([400] * 5)
    assert judge(ceilings(1.1), repeats=[RUN, RUN]).status is Status.PASS
    assert judge(ceilings(1.1), repeats=[RUN, fast, RUN]).status is Status.FAIL


def test_the_rate_is_that_of_one_device() -> None:
    assert judge(ceilings(0.51), world_size=2).status is Status.PASS


def test_without_a_ceiling_nothing_is_observed() -> None:
    assert judge(None).status is Status.NOT_OBSERVED


def test_an_older_record_passes_below_its_ceiling_and_is_not_accused_above_it() -> None:
    assert judge(ceilings(None, attained=1.01)).status is Status.PASS
    assert judge(ceilings(None, attained=0.99)).status is Status.NOT_OBSERVED


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"hidden_size": 64},
        {**asdict(SHAPE), "hidden_size": None},
        {**asdict(SHAPE), "num_attention_heads": 0},
        {**asdict(SHAPE), "num_hidden_layers": 1.5},
        {**asdict(SHAPE), "more": 1},
    ],
)
def test_shapes_that_are_none_are_not_observed_instead_of_a_crash(shapes: dict) -> None:
    assert judge(ceilings(1.1), workload=facts(shapes=shapes)).status is Status.NOT_OBSERVED


def test_a_window_that_ends_before_it_begins_is_not_observed() -> None:
    backwards = RUN.model_copy(update={"stop_ns": RUN.start_ns})
    assert judge(ceilings(1.1), repeats=[backwards]).status is Status.NOT_OBSERVED
    assert judge(ceilings(1.1), repeats=[]).status is Status.NOT_OBSERVED


@pytest.mark.parametrize(("after", "status"), [(0.45, Status.FAIL), (0.449, Status.FLAG)])
def test_a_ceiling_may_drift_by_a_tenth_and_still_convicts(after: float, status: Status) -> None:
    assert judge(ceilings(0.5, after)).status is status


@pytest.mark.parametrize("known", ["before", "after"])
def test_one_ceiling_alone_acquits_and_never_convicts(known: str) -> None:
    def one(best: float) -> Ceilings:
        both, none = ceilings(best), ceilings(None)
        return both.model_copy(
            update={side: getattr(none, side) for side in ("before", "after") if side != known}
        )

    assert judge(one(1.1)).status is Status.PASS
    assert judge(one(0.5)).status is Status.FLAG


def test_exactly_at_a_bound_a_run_is_possible() -> None:
    assert judge(ceilings(1.0)).status is Status.PASS
    assert judge(ceilings(1.0), peak=1.0).status is Status.PASS
    assert judge(ceilings(None, attained=1.0)).status is Status.PASS


@pytest.mark.parametrize("world_size", [0, -1])
def test_a_run_of_no_device_has_no_rate(world_size: int) -> None:
    assert judge(ceilings(1.1), world_size=world_size).status is Status.NOT_OBSERVED


def test_a_forward_pass_is_a_third_of_the_work_of_a_step() -> None:
    forward = facts(mode="forward")
    assert judge(ceilings(0.34), workload=forward).status is Status.PASS
    assert judge(ceilings(0.31), workload=forward).status is Status.FAIL


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_size_of_nothing_or_less_is_no_shape(name: str, size: int) -> None:
    assert physics.shape_of(facts(shapes={**asdict(SHAPE), name: size})) is None


def test_padding_and_dropout_may_be_nothing() -> None:
    assert physics.shape_of(facts(shapes={**asdict(SHAPE), "padding_idx": 0})) is not None
    bert = {"family": "bert", "shapes": {**asdict(BertShape()), "dropout": 0.0}}
    assert physics.shape_of(facts(**bert)) is not None
    assert physics.shape_of(facts(family="mamba")) is None


def test_above_products_of_eight_bits_a_run_in_fewer_is_neither_passed_nor_convicted() -> None:
    """A device may multiply 4 bits twice or three times as fast, and llmb times none of them."""
    assert judge(ceilings(1.1), bits=4).status is Status.PASS
    for peak in (None, 100.0):
        found = judge(ceilings(0.4), peak=peak, bits=4)
        assert found.status is Status.NOT_OBSERVED
        assert "which has 8 bits: none in 4 was timed" in found.message
    assert judge(ceilings(0.4), peak=0.9, bits=4).status is Status.FAIL, "above the datasheet's"
    assert judge(ceilings(0.4), bits=8).status is Status.FAIL
