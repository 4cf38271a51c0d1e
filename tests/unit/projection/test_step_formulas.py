"""Each part of a projected step against its closed form, on a device of round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb.errors import UsageError
from llmb.projection.hardware_files import Hardware, load
from llmb.projection.job import Job, Model
from llmb.projection.step_time import Constants, ProjectedStep, step_time

#: 16 tokens in 4 layers of 768 weights (4 * 8 * 8 + 2 * 8 * 32), and a head of 800.
MODEL = Model(
    layers=4,
    hidden=8,
    intermediate=32,
    heads=4,
    kv_share=1.0,
    gated=False,
    vocabulary=100,
    sequence=16,
)
WEIGHTS = 4 * 768 + 2 * 800
#: So fast that what waits for it takes no time.
AT_ONCE = 1e30
#: Products at 5e11 FLOP/s and attention at 2.5e11, on nodes of 8 devices.
DEVICE = load("h100").model_copy(
    update={
        "peak_flops": 1e12,
        "sustained_fraction": 0.5,
        "attention_fraction": 0.25,
        "memory_bytes_per_second": AT_ONCE,
        "link_bytes_per_second": 1e9,
        "message_bytes_per_second": None,
        "network_bytes_per_second": 1e8,
        "latency_s": 0.0,
        "devices_per_node": 8,
    }
)
PLAIN = Constants(
    products=1,
    launch_s=0,
    attention=1,
    memory=1,
    link=1,
    network=1,
    overlap=0,
    unfused=2,
    scores=3,
)


def taken(job: Job, constants: Constants = PLAIN, **device: object) -> ProjectedStep:
    return step_time(job, DEVICE.model_copy(update=device), constants)


def moving(job: Job, constants: Constants = PLAIN) -> ProjectedStep:
    """Return the time on a device whose memory moves 1e6 bytes a second and computes at once."""
    return taken(job, constants, peak_flops=AT_ONCE, memory_bytes_per_second=1e6)


def test_products_are_three_passes_over_every_weight_of_a_layer() -> None:
    seconds = 3 * 2 * 16 * 4 * 768 / 5e11
    assert taken(Job(MODEL)).products == pytest.approx(seconds)
    assert taken(Job(MODEL, micro_batch=2, micro_batches=3)).products == pytest.approx(6 * seconds)
    assert taken(Job(MODEL, tp=2)).products == pytest.approx(seconds / 2)
    assert taken(Job(MODEL, pp=2)).products == pytest.approx(seconds / 2)


def test_a_gate_is_one_matrix_more_and_grouped_heads_have_fewer_keys_and_values() -> None:
    gated, grouped = replace(MODEL, gated=True), replace(MODEL, kv_share=0.25)
    assert taken(Job(gated)).products == pytest.approx(3 * 2 * 16 * 4 * (768 + 256) / 5e11)
    assert taken(Job(grouped)).products == pytest.approx(3 * 2 * 16 * 4 * (768 - 96) / 5e11)


def test_a_product_that_waits_for_memory_takes_what_it_moves() -> None:
    # Of each product its two inputs and its output, 2 bytes a value: rows, inner, columns.
    sizes = ((16, 8, 24), (16, 8, 8), (16, 8, 32), (16, 32, 8))
    moved = sum(2 * (r * i + i * c + r * c) for r, i, c in sizes)
    assert moving(Job(MODEL)).products == pytest.approx(4 * 3 * moved / 1e6)


def test_every_product_is_launched_once_forward_and_twice_backward() -> None:
    slow = replace(PLAIN, launch_s=1.0)
    assert taken(Job(MODEL), slow).products == pytest.approx(4 * 4 * 3)
    assert taken(Job(replace(MODEL, gated=True)), slow).products == pytest.approx(4 * 5 * 3)
    assert taken(Job(MODEL), slow).head == pytest.approx(3)


@pytest.mark.parametrize(("share", "times"), [("products", 2), ("attention", 1)])
def test_a_share_of_products_is_of_products_alone(share: str, times: int) -> None:
    found, half = taken(Job(MODEL)), taken(Job(MODEL), replace(PLAIN, **{share: 0.5}))
    assert half.products == pytest.approx(times * found.products)
    assert half.attention == pytest.approx(3 / times / 1.5 * found.attention)


def test_fused_attention_computes_half_the_square_and_two_and_a_half_times_that_backward() -> None:
    forward = 4 * 16 * 16 * 8 / 2 / 2.5e11
    assert taken(Job(MODEL)).attention == pytest.approx(4 * 3.5 * forward)
    assert taken(Job(MODEL, tp=2)).attention == pytest.approx(2 * 3.5 * forward)


def test_stored_scores_are_the_whole_square_and_move_through_memory_both_ways() -> None:
    stored = Job(MODEL, fused_attention=False)
    assert taken(stored).attention == pytest.approx(4 * 3 * 4 * 16 * 16 * 8 / 5e11)
    scores = 16 * 16 * 4
    assert moving(stored).attention == pytest.approx(4 * 2 * 3 * 5 * scores * 2 / 1e6)


def test_elementwise_work_is_ten_widths_and_those_of_the_activation() -> None:
    forward = 2 * 16 * (10 * 8 + 2 * 32) / 1e6
    assert moving(Job(MODEL)).elementwise == pytest.approx(4 * 2.8 * forward)
    unfused = Job(MODEL, fused_elementwise=False)
    assert moving(unfused).elementwise == pytest.approx(2 * 4 * 2.8 * forward)
    sliced, shared = Job(MODEL, tp=2), Job(MODEL, tp=2, sequence_parallel=True)
    assert moving(sliced).elementwise == pytest.approx(4 * 2.8 * 2 * 16 * (80 + 32) / 1e6)
    assert moving(shared).elementwise == pytest.approx(4 * 2.8 * 2 * 16 * (40 + 32) / 1e6)


@pytest.mark.parametrize("recompute", ["none", "attention", "full"])
def test_what_is_computed_again_is_its_forward_pass(recompute: str) -> None:
    forward = {"attention": 4 * 16 * 16 * 8 / 2 / 2.5e11, "products": 2 * 16 * 768 / 5e11}
    expected = {"none": 0.0, "attention": forward["attention"], "full": sum(forward.values())}
    found = taken(Job(MODEL, recompute=recompute)).recompute
    assert found == pytest.approx(4 * expected[recompute])


def test_the_head_is_a_product_and_what_its_logits_move() -> None:
    assert taken(Job(MODEL, micro_batches=5)).head == pytest.approx(5 * 3 * 2 * 16 * 800 / 5e11)
    moved = 3 * 2 * (16 * 8 + 800 + 1600) + 32 * 1600
    assert moving(Job(MODEL)).head == pytest.approx(moved / 1e6)
    sliced = 3 * 2 * (16 * 8 + 400 + 800) + 32 * 800
    assert moving(Job(MODEL, tp=2)).head == pytest.approx(sliced / 1e6)


@pytest.mark.parametrize(
    ("layout", "share"),
    [({}, 1), ({"tp": 2}, 2), ({"pp": 2}, 2), ({"dp": 4}, 1), ({"dp": 4, "zero": 1}, 4)],
    ids=str,
)
def test_the_optimizer_moves_thirty_bytes_of_each_parameter_a_rank_has(
    layout: dict[str, int], share: int
) -> None:
    assert moving(Job(MODEL, **layout)).optimizer == pytest.approx(30 * WEIGHTS / share / 1e6)


def test_slices_send_four_sums_a_layer_over_their_node_or_the_network() -> None:
    sent = 2 * 3 / 4 * 16 * 8 * 2
    assert taken(Job(MODEL, tp=4)).tensor_parallel == pytest.approx(4 * 4 * sent / 1e9)
    far = taken(Job(MODEL, tp=4), devices_per_node=2).tensor_parallel
    assert far == pytest.approx(4 * 4 * sent / 1e8)
    at_the_edge = taken(Job(MODEL, tp=4), devices_per_node=4).tensor_parallel
    assert at_the_edge == pytest.approx(4 * 4 * sent / 1e9)


def test_a_device_whose_latency_nobody_measured_has_ten_microseconds() -> None:
    job = Job(MODEL, tp=4)
    more = taken(job, latency_s=None).tensor_parallel - taken(job).tensor_parallel
    assert more == pytest.approx(4 * 4 * 10e-6)


@pytest.mark.parametrize(("speed", "expected"), [(None, 1e9), (4e9, 4e9)])
def test_stages_of_a_node_send_one_micro_batch_there_and_back(
    speed: float | None, expected: float
) -> None:
    sent = 16 * 8 * 2
    job = Job(MODEL, pp=4, micro_batches=8)
    found = taken(job, message_bytes_per_second=speed).pipeline
    assert found == pytest.approx(2 * 3 * sent / expected)
    assert taken(replace(job, dp=4)).pipeline == pytest.approx(2 * 3 * sent / 1e8)
    shared = replace(job, tp=2, sequence_parallel=True)
    assert taken(shared).pipeline == pytest.approx(2 * 3 * sent / 2 / 1e9)


def ring(parameters: float, of: int, bytes_each: int, speed: float = 1e9) -> float:
    return parameters * bytes_each * (of - 1) / of / speed


@pytest.mark.parametrize(
    ("zero", "passes"), [(0, 2 * 4), (1, 4 + 2)], ids=["summed and sent", "state shared"]
)
def test_replicas_sum_float32_gradients_and_gather_weights_of_two_bytes(
    zero: int, passes: int
) -> None:
    found = taken(Job(MODEL, dp=4, zero=zero, micro_batches=3)).data_parallel
    assert found == pytest.approx(ring(WEIGHTS, 4, passes))


@pytest.mark.parametrize(("zero", "gathers"), [(2, 2), (3, 3)])
def test_shared_weights_are_sent_for_every_micro_batch(zero: int, gathers: int) -> None:
    # Of what cannot hide behind work that takes no time, all is shown.
    job = Job(MODEL, dp=4, zero=zero, micro_batches=3)
    found = taken(job, peak_flops=AT_ONCE).data_parallel
    assert found == pytest.approx(3 * gathers * ring(WEIGHTS, 4, 2))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_traffic_hides_wholly_behind_enough_work(zero: int) -> None:
    hiding = replace(PLAIN, overlap=1.0)
    assert taken(Job(MODEL, dp=4, zero=zero), hiding, peak_flops=1.0).data_parallel == 0


@pytest.mark.parametrize("zero", [2, 3])
def test_a_third_of_what_is_not_overlapped_leaks_where_weights_are_gathered(zero: int) -> None:
    gathers = zero
    half = replace(PLAIN, overlap=0.5)
    found = taken(Job(MODEL, dp=4, zero=zero), half, peak_flops=1.0).data_parallel
    assert found == pytest.approx(0.5 * 0.3 * gathers * ring(WEIGHTS, 4, 2))


@pytest.mark.parametrize(
    ("dp", "tp", "speed"), [(4, 2, 1e9), (8, 1, 1e9), (16, 1, 8e8), (8, 2, 4e8), (2, 16, 1e8)]
)
def test_replicas_of_one_node_share_what_leaves_it(dp: int, tp: int, speed: float) -> None:
    job = Job(replace(MODEL, heads=16), dp=dp, tp=tp)
    found = taken(job).data_parallel
    assert found == pytest.approx(ring(WEIGHTS / tp, dp, 2 * 4, speed))


def test_the_bubble_is_all_a_rank_does_but_head_and_optimizer() -> None:
    found = taken(Job(MODEL, pp=4, tp=2, micro_batches=8, recompute="full"))
    busy = found.products + found.attention + found.recompute + found.tensor_parallel
    assert found.bubble == pytest.approx(busy * 3 / 8)


@pytest.mark.parametrize(
    ("missing", "layout"),
    [
        ("link_bytes_per_second", {"tp": 2}),
        ("link_bytes_per_second", {"dp": 2}),
        ("network_bytes_per_second", {"tp": 16}),
        ("network_bytes_per_second", {"dp": 16}),
        ("network_bytes_per_second", {"dp": 8, "pp": 2}),
    ],
    ids=str,
)
def test_what_devices_talk_over_must_be_known(missing: str, layout: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{missing} is not known"):
        taken(Job(MODEL, **layout), **{missing: None})


def test_a_device_alone_needs_no_link() -> None:
    alone: dict[str, None] = {"link_bytes_per_second": None, "network_bytes_per_second": None}
    assert isinstance(DEVICE, Hardware)
    assert taken(Job(MODEL), **alone).total > 0
