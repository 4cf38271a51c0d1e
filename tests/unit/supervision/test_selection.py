"""Which offer, precision and batch size a run gets, and what the refusals say."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import (
    BF16,
    FP16,
    FP32,
    AuditMode,
    Parallelism,
    Precision,
    RankAddress,
    Refused,
    RunConfig,
    RunRequest,
    is_cpu,
)
from llmb.errors import NotEnoughMemoryError, UnavailableError, UsageError
from llmb.records.system import Device
from llmb.supervision import memory, selection
from llmb.wire.messages import Offer
from tests.unit.builders_runtime import TINY, offer, run_config

OFFICIAL = workloads.find("llama-1.4b", {})
DEBUG = workloads.find("llama-1.4b", TINY)
CPU = offer()
GENERIC = offer(plugin="generic", device="warp")
VENDOR = offer(plugin="warp", device="warp:0", distribution="llmb-warp")
VENDOR_CPU = offer(plugin="acpu", device="cpu", distribution="llmb-acpu")
SLOW_BF16 = BF16.model_copy(update={"native": False})


def gone(offered: Offer, reason: str) -> Offer:
    return offered.model_copy(update={"available": False, "reason": reason})


@pytest.mark.parametrize(
    ("offers", "best"),
    [
        ([CPU], "cpu"),
        ([CPU, GENERIC], "generic"),
        ([CPU, GENERIC, VENDOR], "warp"),
        ([VENDOR, GENERIC, CPU], "warp"),
        ([CPU, GENERIC, gone(VENDOR, "no device")], "generic"),
        ([CPU, gone(GENERIC, "none"), gone(VENDOR, "no device")], "cpu"),
        ([VENDOR_CPU, CPU], "cpu"),
        ([VENDOR_CPU, gone(CPU, "x")], "acpu"),
        ([VENDOR.model_copy(update={"plugin": "zeta"}), VENDOR], "warp"),
    ],
)
def test_an_accelerator_comes_before_the_cpu_and_a_vendor_before_our_own_but_on_the_cpu(
    offers: list[Offer], best: str
) -> None:
    assert selection.best_offer(offers, RunRequest()).plugin == best


def test_where_nothing_serves_the_device_every_plugins_reason_is_given() -> None:
    offers = [gone(CPU, "it drives 'cpu'"), gone(GENERIC, "torch sees no accelerator")]
    with pytest.raises(UnavailableError) as caught:
        selection.best_offer(offers, RunRequest(device="warp:0"))
    for words in ("'warp:0'", "cpu: it drives 'cpu'", "generic: torch sees no", "install"):
        assert words in str(caught.value)


def test_where_the_one_plugin_asked_for_cannot_its_own_reason_is_given() -> None:
    with pytest.raises(UnavailableError, match=r"^plugin 'warp': no device$"):
        selection.best_offer([gone(VENDOR, "no device")], RunRequest(plugin="warp"))


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", True), ("cpu:0", True), ("cpux", False), ("warp:0", False)]
)
def test_the_cpu_is_told_by_the_part_before_the_colon(device: str, expected: bool) -> None:
    assert is_cpu(device) is expected


@pytest.mark.parametrize(
    ("offered", "requested", "expected"),
    [
        (CPU, None, False),
        (CPU, "auto", True),
        (CPU, 4, False),
        (VENDOR, None, True),
        (VENDOR, "auto", True),
        (VENDOR, 4, False),
    ],
)
def test_the_batch_size_is_searched_when_asked_for_and_by_default_on_accelerators(
    offered: Offer, requested: object, expected: bool
) -> None:
    assert selection.wants_search(offered, requested) is expected


def resolve(offered: Offer = CPU, workload=OFFICIAL, **request: object):
    return selection.resolve(offered, RunRequest(**request), workload)


def test_what_was_asked_for_is_what_is_resolved() -> None:
    config = resolve(
        precision="fp32", batch_size=3, seed=5, warmup_steps=4, timed_steps=60, repeats=2
    )
    assert (config.precision, config.batch_size, config.seed) == (FP32, 3, 5)
    assert (config.warmup_steps, config.timed_steps, config.repeats) == (4, 60, 2)
    assert (config.plugin, config.device) == ("cpu", "cpu")


def test_a_seed_that_was_not_given_is_drawn_afresh() -> None:
    assert len({resolve().seed for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, AuditMode.FULL),
        ({"timed_steps": 49}, AuditMode.QUICK),
        ({"shape_overrides": {"num_hidden_layers": 2}}, AuditMode.QUICK),
        ({"audit": AuditMode.OFF}, AuditMode.OFF),
        ({"audit": AuditMode.QUICK}, AuditMode.QUICK),
        ({"timed_steps": 49, "audit": AuditMode.FULL}, AuditMode.FULL),
    ],
)
def test_an_official_run_is_audited_in_full_a_debug_run_quickly_unless_asked_otherwise(
    request_: dict[str, object], expected: AuditMode
) -> None:
    assert resolve(**request_).audit is expected


@pytest.mark.parametrize("size", [None, "auto"])
def test_a_batch_size_that_is_still_open_stands_at_one(size: object) -> None:
    assert resolve(batch_size=size).batch_size == 1


def test_options_are_those_the_probe_resolved() -> None:
    resolved = resolve(CPU.model_copy(update={"options": {"threads": 4}}))
    assert resolved.plugin_options == {"threads": 4}


@pytest.mark.parametrize(
    ("formats", "free", "expected"),
    [
        ((BF16, FP32), 10**12, "BF16"),
        ((FP32, BF16), 10**12, "FP32"),
        ((SLOW_BF16, FP32), 10**12, "FP32"),
        ((FP32, BF16), 17 * 10**9, "BF16"),
        ((BF16, FP32), None, "BF16"),
    ],
)
def test_by_default_the_first_native_format_that_fits_is_taken(
    formats: tuple[Precision, ...], free: int | None, expected: str
) -> None:
    offered = offer(precisions=formats, available_memory_bytes=free)
    assert resolve(offered).precision.name == expected


@pytest.mark.parametrize(("ranks", "expected"), [(1, "FP32"), (2, "BF16")])
def test_ranks_that_share_a_hosts_memory_need_a_format_in_which_all_of_them_fit(
    ranks: int, expected: str
) -> None:
    offered = offer(precisions=(FP32, BF16), available_memory_bytes=60 * 10**9)
    shares = {"local_rank": 0, "local_world_size": ranks}
    place = RankAddress(rank=0, world_size=ranks, host="h", port=1, **shares)
    request = RunRequest(parallelism=Parallelism(dp_replicate=ranks))
    assert selection.resolve(offered, request, OFFICIAL, place).precision.name == expected


def test_an_emulated_format_is_never_taken_by_default_not_even_when_nothing_else_fits() -> None:
    offered = offer(precisions=(FP32, SLOW_BF16), available_memory_bytes=17 * 10**9)
    with pytest.raises(NotEnoughMemoryError, match="in FP32"):
        resolve(offered)


def test_an_emulated_format_is_taken_when_asked_for() -> None:
    assert resolve(offer(precisions=(FP32, SLOW_BF16)), precision="BF16").precision == SLOW_BF16


def test_where_every_format_is_emulated_none_is_chosen() -> None:
    with pytest.raises(UnavailableError, match="'cpu' offers no native precision"):
        resolve(offer(precisions=(SLOW_BF16,)))


@pytest.mark.parametrize("name", ["TF32", "tf32", "FP16", "FP8"])
def test_a_known_format_the_device_lacks_is_unavailable_and_never_silently_another(
    name: str,
) -> None:
    with pytest.raises(UnavailableError, match=f"{name.upper()}: plugin 'cpu' .*BF16, FP32"):
        resolve(precision=name)


def test_a_format_nobody_knows_is_a_usage_error_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--precision FP7: unknown .*BF16, FP32"):
        resolve(precision="FP7")


def test_a_format_that_a_plugin_adds_is_found_by_its_own_name() -> None:
    mxfp4 = Precision(name="MXfp4", bits=4, dtype="bfloat16")
    assert resolve(offer(precisions=(mxfp4,)), precision="mxFP4").precision == mxfp4


#: Of llama-1.4b in BF16: a quarter of the weights, for the probes.
PROBES_GB = 0.25 * 2 * 1_433_680_000 / 1e9


def test_what_is_needed_is_the_estimate_with_slack_the_probes_and_the_process() -> None:
    small, large = (memory.needed_bytes(OFFICIAL, BF16, size) for size in (1, 2))
    assert 12.5 + PROBES_GB < small / 1e9 < 13.5 + PROBES_GB
    assert large > small
    assert memory.needed_bytes(DEBUG, BF16, 1) > 500 * 2**20


def refusal(free: int, precision: Precision, batch_size: int, *formats: Precision) -> str:
    offered = offer(precisions=formats or (BF16, FP32), available_memory_bytes=free)
    with pytest.raises(NotEnoughMemoryError) as caught:
        memory.check_memory(offered, OFFICIAL, precision, batch_size)
    return str(caught.value)


def test_a_refusal_says_need_have_and_the_largest_batch_size_that_fits() -> None:
    free = memory.needed_bytes(OFFICIAL, BF16, 5)
    text = refusal(free, BF16, 9)
    need = memory.needed_bytes(OFFICIAL, BF16, 9)
    assert f"llama-1.4b in BF16 at batch size 9 needs about {need / 1e9:.1f} GB" in text
    assert f"cpu has {free / 1e9:.1f} GB free" in text
    assert text.endswith("use --batch-size 5")


def test_a_refusal_names_another_format_where_no_batch_size_fits() -> None:
    need = memory.needed_bytes(OFFICIAL, BF16, 1) / 1e9
    assert f"use --precision BF16 ({need:.1f} GB" in refusal(17 * 10**9, FP32, 1)


def test_a_refusal_of_mixed_precision_names_plain_weights_and_no_format_that_is_mixed_too() -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    need = memory.needed_bytes(OFFICIAL, BF16, 1)
    text = refusal(need, mixed, 1, BF16, FP16, FP32)
    assert text.endswith(f"use --no-mixed-precision ({need / 1e9:.1f} GB at batch size 1)")
    assert "use --workload llama-410m" in refusal(need - 1, mixed, 1, FP16, BF16, FP32)


#: Measured without an audit.
@pytest.mark.parametrize(
    ("batch_size", "measured_gb"), [(1, 12.68), (2, 13.58), (4, 14.80), (5, 15.85), (8, 17.30)]
)
def test_what_a_run_is_said_to_need_covers_what_runs_took_and_little_more(
    batch_size: int, measured_gb: float
) -> None:
    need_gb = memory.needed_bytes(OFFICIAL, BF16, batch_size) / 1e9
    assert measured_gb + PROBES_GB < need_gb < measured_gb + PROBES_GB + 1.0


def test_an_audited_run_took_less_than_it_is_said_to_need() -> None:
    assert 12.77 < memory.needed_bytes(OFFICIAL, BF16, 1) / 1e9 < 14.1


def test_a_refusal_says_when_nothing_fits() -> None:
    least = memory.needed_bytes(workloads.find("llama-45m", {}), BF16, 1) / 1e9
    words = f"not even llama-45m, which needs {least:.1f} GB in BF16; try --preset debug, or free"
    assert words in refusal(10**9, BF16, 1)


def test_a_refusal_names_a_smaller_official_size_where_no_format_of_this_one_fits() -> None:
    need = memory.needed_bytes(workloads.find("llama-410m", {}), BF16, 1) / 1e9
    text = refusal(8 * 10**9, FP32, 1, FP32, BF16)
    assert text.endswith(f"use --workload llama-410m ({need:.1f} GB in BF16)")


def test_a_refusal_does_not_send_anybody_to_an_emulated_format() -> None:
    assert "--precision BF16" not in refusal(17 * 10**9, FP32, 1, FP32, SLOW_BF16)


def test_the_limit_itself_fits_and_unknown_memory_is_not_checked() -> None:
    need = memory.needed_bytes(OFFICIAL, BF16, 2)
    for free in (need, None):
        offered = offer(available_memory_bytes=free)
        assert memory.check_memory(offered, OFFICIAL, BF16, 2) is None
    assert refusal(need - 1, BF16, 2)


def test_a_run_that_does_not_fit_is_refused_when_it_is_resolved() -> None:
    with pytest.raises(NotEnoughMemoryError, match="at batch size 4"):
        resolve(offer(available_memory_bytes=10**9), batch_size=4)


def test_fp16_and_bf16_need_the_same() -> None:
    need = [memory.needed_bytes(OFFICIAL, precision, 1) for precision in (FP16, BF16)]
    assert need[0] == need[1]


REFUSING = offer(refused=(Refused(name="FP8", reason="the card is too old"),))


@pytest.mark.parametrize("wanted", ["FP8", "fp8", "Fp8"])
def test_a_format_that_the_plugin_refuses_is_unavailable_with_the_plugins_own_reason(
    wanted: str,
) -> None:
    words = r"--precision FP8: plugin 'cpu' .* on cpu: the card is too old \(it offers BF16, FP32\)"
    with pytest.raises(UnavailableError, match=words):
        resolve(REFUSING, precision=wanted)


def test_a_format_of_a_vendors_own_that_it_refuses_is_no_unknown_format() -> None:
    refusing = offer(refused=(Refused(name="MXfp4", reason="-O fp4=off"),))
    with pytest.raises(UnavailableError, match=r"MXFP4: .*-O fp4=off"):
        resolve(refusing, precision="mxFP4")


def test_a_refused_format_is_never_chosen_and_changes_nothing_for_the_others() -> None:
    assert resolve(REFUSING).precision == BF16
    assert resolve(REFUSING, precision="fp32").precision == FP32


def test_where_nothing_works_and_no_device_was_named_each_reason_is_given_once() -> None:
    reason = "plugin {!r} cannot be probed: no torch"
    offers = [gone(each, reason.format(each.plugin)) for each in (CPU, GENERIC)]
    with pytest.raises(UnavailableError) as caught:
        selection.best_offer([*offers, gone(VENDOR, "no device")], RunRequest())
    text = str(caught.value)
    assert "None" not in text
    assert "(cpu, generic: cannot be probed: no torch; warp: no device); see llmb doctor" in text


@pytest.mark.parametrize(("local", "device"), [(0, "warp:0"), (1, "warp:1"), (2, None)])
def test_each_rank_of_a_host_has_a_device_and_more_ranks_than_devices_are_refused(
    local: int, device: str | None
) -> None:
    two = offer(device="warp", devices=(Device(name="a"), Device(name="b")))
    place = RankAddress(
        rank=local, world_size=3, local_rank=local, local_world_size=3, host="h", port=1
    )
    if device is None:
        with pytest.raises(UnavailableError, match="which has 2 warp devices"):
            selection.at(place, two, run_config(device="warp"))
    else:
        assert selection.at(place, two, run_config(device="warp")).device == device


# -- a batch size that is named on a device ---------------------------------------------------


def on_a_device(free: int, batch_size: int | None, *, tries: bool = True) -> RunConfig:
    offered = offer(plugin="warp", device="warp:0", available_memory_bytes=free)
    request = RunRequest(precision="BF16", batch_size=batch_size)
    return selection.resolve(offered, request, OFFICIAL, tries=tries)


def test_a_device_tries_the_batch_size_that_is_named_though_the_estimate_is_above_its_memory() -> (
    None
):
    config = on_a_device(40 * 10**9, 64)
    offered = offer(plugin="warp", device="warp:0", available_memory_bytes=40 * 10**9)
    (doubt,) = selection.doubts(offered, config, OFFICIAL)
    assert config.batch_size == 64
    assert doubt.startswith("tried because --batch-size names it: llama-1.4b in BF16 at batch size")
    assert "warp:0 has 40.0 GB free: use --batch-size 5" in doubt


def test_what_fits_needs_no_doubt() -> None:
    offered = offer(plugin="warp", device="warp:0", available_memory_bytes=80 * 10**9)
    assert selection.doubts(offered, on_a_device(80 * 10**9, 64), OFFICIAL) == ()


def test_a_device_that_cannot_even_hold_the_state_is_refused() -> None:
    with pytest.raises(NotEnoughMemoryError, match="at batch size 64 needs about"):
        on_a_device(12 * 10**9, 64)


def test_a_size_that_nobody_named_or_that_llmb_may_choose_is_refused_as_ever() -> None:
    with pytest.raises(NotEnoughMemoryError):
        on_a_device(13 * 10**9, None)
    with pytest.raises(NotEnoughMemoryError):
        on_a_device(40 * 10**9, 64, tries=False)


def test_a_processor_tries_nothing_since_its_system_ends_other_programs_first() -> None:
    with pytest.raises(NotEnoughMemoryError):
        selection.resolve(
            offer(available_memory_bytes=40 * 10**9),
            RunRequest(precision="BF16", batch_size=64),
            OFFICIAL,
            tries=True,
        )
