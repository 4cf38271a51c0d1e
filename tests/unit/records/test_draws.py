"""What each step is told follows from the nonce, and a stranger draws the same."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from dataclasses import replace

import pytest

from llmb.config import BF16, FP16, FP32, Parallelism, Precision
from llmb.config import NONCE as NONCE_PATTERN
from llmb.records import draws
from llmb.records.draws import Draws
from llmb.reference.recipe import OFFICIAL_OPTIMIZER, Optimizer

NONCE = "0123456789abcdef" * 2
DRAWN = Draws(NONCE, OFFICIAL_OPTIMIZER, ledger=True)


def test_a_complete_audit_repeats_every_step() -> None:
    for ranks in (1, 64):
        drawn = replace(DRAWN, ranks=ranks, complete=True)
        assert drawn.least_replayed(65) == 65
        assert set(drawn.recomputed(65)) <= set(range(1, 65))


STEEP = Optimizer(lr=1e-3)
SGD = Optimizer(name="SGD", lr=1e-5)


def documented(label: str) -> int:
    """Return the first 63 bits of eight bytes of a hash, as docs/formats has it."""
    first = hashlib.sha256(f"{int(NONCE, 16)}:{label}".encode()).digest()[:8]
    return int.from_bytes(first, "little") >> 1


def test_a_nonce_is_128_bits_in_hexadecimal_and_never_the_same() -> None:
    found = {draws.new_nonce() for _ in range(50)}
    assert len(found) == 50
    assert all(re.search(NONCE_PATTERN, nonce) for nonce in found)


def test_a_stranger_draws_the_same_places() -> None:
    assert DRAWN.places(7) == documented("places:7")


def test_a_stranger_draws_the_same_rate() -> None:
    share = documented("rate:7") / 2**63
    assert DRAWN.rate(7) == float(f"{1e-5 * 30**share:.6g}")


def test_rates_lie_evenly_by_their_logarithm_from_the_workloads_own_to_the_largest() -> None:
    found = [DRAWN.rate(step) for step in range(2000)]
    assert 1e-5 <= min(found) < 1.02e-5
    assert 2.94e-4 < max(found) <= 3e-4
    below = sum(rate < 5.48e-5 for rate in found) / len(found)
    assert math.isclose(below, 0.5, abs_tol=0.04)


def test_a_steep_rate_is_drawn_as_that_of_the_fixed_workload_is() -> None:
    drawn = Draws(NONCE, STEEP, ledger=True)
    assert [drawn.rate(n) for n in range(20)] == [DRAWN.rate(n) for n in range(20)]


def test_a_rate_of_its_own_that_is_smaller_is_where_the_range_begins() -> None:
    drawn = Draws(NONCE, replace(STEEP, lr=1e-6), ledger=True)
    assert 1e-6 <= min(drawn.rate(step) for step in range(2000)) < 1.05e-6


def test_the_rate_of_sgd_stays_as_it_is() -> None:
    drawn = Draws(NONCE, SGD, ledger=True)
    assert {drawn.rate(step) for step in range(20)} == {SGD.lr}
    assert not drawn.varies


@pytest.mark.parametrize(
    "drawn",
    [
        Draws(NONCE, OFFICIAL_OPTIMIZER, ledger=False),
        Draws(NONCE, OFFICIAL_OPTIMIZER, ledger=True, constant_rate=True),
    ],
    ids=["no step is replayed", "--constant-rate"],
)
def test_the_rate_is_the_workloads_own(drawn: Draws) -> None:
    assert {drawn.rate(step) for step in range(20)} == {1e-5}


def test_the_first_repeat_has_the_nonce_of_the_run_and_the_others_one_that_follows_from_it() -> (
    None
):
    assert draws.nonce_of(NONCE, 0) == NONCE
    digest = hashlib.sha256(f"{NONCE}:repeat:2".encode()).hexdigest()
    assert draws.nonce_of(NONCE, 2) == digest[:32]


def test_window_audits_and_places_are_drawn_apart() -> None:
    found = {DRAWN.window, *map(DRAWN.audit, range(9)), *map(DRAWN.places, range(9))}
    assert len(found) == 19


@pytest.mark.parametrize(
    ("rates", "optimizer", "steps"),
    [
        ([6e-4] * 50, Optimizer(lr=6e-4), 4),
        ([1e-3] * 50, Optimizer(lr=1e-3), 3),
        ([3e-3] * 50, Optimizer(lr=3e-3), 1),
        ([3e-4] * 80, Optimizer(lr=3e-4), 67),
        ([1e-4] * 50, OFFICIAL_OPTIMIZER, 50),
        ([1e-1] * 50, Optimizer(name="SGD", lr=1e-1), 50),
        ([1e-5] * 500, OFFICIAL_OPTIMIZER, 80),
        ([1e-1] * 500, Optimizer(name="SGD", lr=1e-1), 80),
        ([], OFFICIAL_OPTIMIZER, 0),
    ],
)
def test_steps_are_compared_until_their_rates_add_up_to_the_horizon(
    rates: list[float], optimizer: Optimizer, steps: int
) -> None:
    assert draws.steps_compared(rates, optimizer) == steps


def test_between_a_quarter_and_all_of_the_steps_are_replayed_at_least() -> None:
    found = [replace(DRAWN, nonce=f"{n:032x}").least_replayed(40) for n in range(4000)]
    assert (min(found), max(found)) == (10, 40)
    assert math.isclose(sum(found) / len(found), 25, abs_tol=0.7)


@pytest.mark.parametrize(
    ("ranks", "fewest", "median"), [(8, 17, 41), (9, 15, 31), (16, 9, 24), (64, 3, 14)]
)
def test_of_more_ranks_than_a_nodes_fewer_steps_are_replayed(
    ranks: int, fewest: int, median: int
) -> None:
    drawn = replace(DRAWN, ranks=ranks)
    found = sorted(replace(drawn, nonce=f"{n:032x}").least_replayed(65) for n in range(4000))
    assert (found[0], found[-1]) == (fewest, 65)
    assert draws.fewest_replayed(65, ranks) == fewest
    assert math.isclose(found[2000], median, abs_tol=2)


def test_of_few_steps_of_many_ranks_two_are_replayed_at_least() -> None:
    assert [draws.fewest_replayed(steps, 64) for steps in (0, 1, 2, 30)] == [0, 1, 2, 2]
    assert replace(DRAWN, ranks=64).least_replayed(0) == 0


def test_rule_g1_judges_as_many_steps_of_many_ranks_as_if_it_were_alone() -> None:
    assert DRAWN.compares_all(60)
    assert not replace(DRAWN, ranks=9).compares_all(60)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mesh": Parallelism(dp_shard=2), "state": 17 * 10**9}, "17 GB that ranks share"),
        ({"mesh": Parallelism(dp_replicate=65)}, "more than 64 ranks"),
        ({"mesh": Parallelism(dp_replicate=33, tp=2)}, "more than 64 ranks"),
        ({"precision": FP16}, "FP16"),
        ({"precision": Precision(name="odd", bits=9, dtype="bfloat16")}, "nobody knows"),
    ],
    ids=str,
)
def test_steps_that_cannot_be_replayed_say_why(changes: dict[str, object], why: str) -> None:
    usual = {"mode": "train", "precision": BF16, "mesh": Parallelism()}
    told = {**usual, "state": 0, **changes}
    mode, precision = told.pop("mode"), told.pop("precision")
    assert why in (draws.why_no_ledger(mode, precision, **told) or "")


NVFP4 = Precision(name="NVFP4", bits=4, dtype="bfloat16")
SCALED = FP16.model_copy(update={"master_weights": True})


@pytest.mark.parametrize("precision", [BF16, FP32, NVFP4, SCALED], ids=str)
def test_steps_of_one_rank_in_other_formats_are_replayed(precision: Precision) -> None:
    plain = {"mesh": Parallelism(), "state": 10**12}
    assert draws.why_no_ledger("train", precision, **plain) is None


@pytest.mark.parametrize(
    ("mesh", "state"),
    [
        (Parallelism(dp_replicate=2), 10**12),
        (Parallelism(dp_replicate=64), 10**12),
        (Parallelism(dp_shard=4, tp=2), 16 * 10**9),
        (Parallelism(pp=2), 10**9),
    ],
    ids=str,
)
def test_steps_of_up_to_64_ranks_are_replayed_too(mesh: Parallelism, state: int) -> None:
    told = {"mesh": mesh, "state": state}
    assert draws.why_no_ledger("train", BF16, **told) is None


def test_a_run_holds_weights_gradients_and_moments() -> None:
    assert draws.state_bytes(1000, BF16, OFFICIAL_OPTIMIZER) == 8000
    assert draws.state_bytes(1000, FP32, Optimizer(name="SGD")) == 8000


def test_of_the_two_steps_that_are_recomputed_one_is_replayed_in_any_case() -> None:
    for n in range(200):
        drawn = Draws(draws.nonce_of(NONCE, n), OFFICIAL_OPTIMIZER, ledger=True)
        found = drawn.recomputed(60)
        assert found == tuple(sorted(set(found)))
        assert 1 <= len(found) <= 2
        assert 0 <= found[0] < drawn.least_replayed(60)
        assert found[-1] < 60


def test_every_step_but_the_first_may_be_recomputed() -> None:
    found = {
        step
        for n in range(400)
        for step in Draws(draws.nonce_of(NONCE, n), OFFICIAL_OPTIMIZER, ledger=True).recomputed(20)
    }
    assert found == set(range(1, 20))


def judged(nonce: int, window: range, *, ledger: bool = True) -> tuple[int, ...]:
    drawn = Draws(draws.nonce_of(NONCE, nonce), OFFICIAL_OPTIMIZER, ledger=ledger)
    return drawn.judged(window, window.stop + 2)


@pytest.mark.parametrize(("ledger", "numbers"), [(True, {2, 3}), (False, {3, 4, 5})])
def test_the_number_of_judged_steps_is_drawn_and_every_step_may_be_one(
    numbers: set[int], *, ledger: bool
) -> None:
    window = range(13, 63)
    found = [judged(n, window, ledger=ledger) for n in range(1000)]
    assert {len(steps) for steps in found} == numbers
    assert all(steps == tuple(sorted({*steps})) for steps in found)
    assert {step for steps in found for step in steps} == {*window}
    counts = Counter(len(steps) for steps in found)
    assert min(counts.values()) > 0.85 * 1000 / len(numbers)
    # No plugin learns from a judged step where the next one is.
    shares = Counter(step for steps in found for step in steps)
    assert max(shares.values()) < 3 * min(shares.values())


def test_a_training_too_long_for_the_ledger_has_more_judged_steps() -> None:
    assert len(judged(0, range(13, 113))) >= 3


@pytest.mark.parametrize("length", [2, 3, 5])
def test_of_a_short_window_a_step_is_left_that_is_not_judged(length: int) -> None:
    for n in range(200):
        assert len(judged(n, range(3, 3 + length))) == min(length - 1, len(judged(n, range(50))))


def test_a_window_of_one_step_has_no_judged_step() -> None:
    assert judged(0, range(3, 4)) == ()


def test_of_no_steps_none_is_recomputed_and_of_one_that() -> None:
    assert DRAWN.recomputed(0) == ()
    assert DRAWN.recomputed(1) == (0,)


@pytest.mark.parametrize(
    ("drawn", "steps", "compared"),
    [
        (DRAWN, 70, True),
        (DRAWN, 81, False),
        (replace(DRAWN, ledger=False), 10, False),
        (Draws(NONCE, Optimizer(lr=3e-3), ledger=True, constant_rate=True), 8, False),
        (Draws(NONCE, Optimizer(lr=3e-3), ledger=True), 70, True),
    ],
    ids=["70 steps", "81 steps", "no ledger", "steep and constant", "steep"],
)
def test_all_steps_are_compared_where_they_are_few_and_honest_runs_stay_together(
    drawn: Draws, steps: int, compared: bool
) -> None:
    assert drawn.compares_all(steps) is compared


@pytest.mark.parametrize(
    ("precision", "dropout", "why"),
    [
        (BF16, False, None),
        (BF16, True, "dropout"),
        (NVFP4, False, "fewer than 8 bits"),
        (SCALED, False, "scaled gradients overflow"),
        (NVFP4, True, "dropout"),
    ],
    ids=str,
)
def test_why_only_directions_of_steps_can_be_compared(
    precision: Precision, dropout: bool, why: str | None
) -> None:
    found = draws.why_rough(precision, dropout=dropout)
    assert (found is None) if why is None else (found is not None and why in found)


def test_steps_with_dropout_are_replayed_and_not_compared_as_exactly() -> None:
    drops = replace(DRAWN, rough=True)
    assert not drops.compares_all(20)
    assert drops.steps_compared(20) == 20
    assert len(drops.judged(range(3, 53), 56)) >= 3


@pytest.mark.parametrize("mode", ["forward", "generate"])
def test_calls_are_made_again_in_formats_in_which_steps_cannot_be(mode: str) -> None:
    plain = {"mesh": Parallelism(), "state": 0}
    narrow = Precision(name="NVFP4", bits=4, dtype="bfloat16")
    assert draws.why_no_ledger(mode, FP16, **plain) is None
    assert draws.why_no_ledger(mode, narrow, **plain) is None


def test_of_few_calls_all_are_compared_in_an_order_that_is_drawn() -> None:
    found = [replace(DRAWN, nonce=f"{n:032x}").calls_compared(20) for n in range(50)]
    assert all(sorted(turn) == [*range(20)] for turn in found)
    assert len({turn[0] for turn in found}) > 10


def test_of_many_calls_any_may_be_compared() -> None:
    found = [replace(DRAWN, nonce=f"{n:032x}").calls_compared(200) for n in range(50)]
    assert {len({*turn}) for turn in found} == {draws.MOST_STEPS}
    assert {call for turn in found for call in turn} == {*range(200)}
