"""E2, E3 and P1: bits of every part beside an honest run's, and the class that they reach."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest

from llmb import formats
from llmb.audit.precision import ROUGH, ROUGH_ON_HOST, Bits, Border, Probes, bits, of_class
from llmb.audit.rule import PartFinding
from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.records.audited import WIDE_LOSS
from llmb.records.finding import Level, Status

FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
MXFP4 = Precision(name="MXFP4", bits=4, dtype="bfloat16")
#: Data of a plugin, for a format that llmb does not know: as MXFP4, of five bits.
FIVE = formats.Format(formats.Element(2, 2, 7.0, scale="e8m0", block=32))
DECLARED = Precision(name="ACME5", bits=5, dtype="bfloat16", format=FIVE)
UNKNOWN = Precision(name="ACME5", bits=5, dtype="bfloat16")
KNOWN = {known.name: known for known in formats.KNOWN}
PARTS = (
    "branches/model.layers.0.self_attn.q_proj.weight",
    "branches/model.layers.0.self_attn.o_proj.weight",
    "branches/model.layers.0.mlp.up_proj.weight",
    "branches/model.layers.0.mlp.down_proj.weight",
    "branches/out/model.layers.0.mlp.down_proj.weight",
    "branches/model.norm.weight",
    "head/model.embed_tokens.weight",
    "head/lm_head.weight",
)
UP, DOWN, HEAD = PARTS[2], PARTS[3], PARTS[7]
#: Bits of an honest run in each class, end to end of a probe.
HONEST = {"FP32": 19.5, "TF32": 10.2, "FP16": 9.8, "BF16": 7.4, "FP8": 4.0}
RIGHT = {part: [random.Random(i).gauss(0, 1) for _ in range(64)] for i, part in enumerate(PARTS)}


def arrays(wanted: float | Mapping[str, float], prefix: str = "") -> dict[str, list[float]]:
    """Return arrays that have exactly so many bits."""
    if not isinstance(wanted, Mapping):
        wanted = dict.fromkeys(PARTS, wanted)
    found = {}
    for i, (part, value) in enumerate(wanted.items()):
        way = [random.Random(100 + i).gauss(0, 1) for _ in range(64)]
        scale = 2.0**-value * math.hypot(*RIGHT[part]) / math.hypot(*way)
        found[prefix + part] = [r + scale * w for r, w in zip(RIGHT[part], way, strict=True)]
    return found


def honest(*classes: str) -> dict[str, list[float]]:
    return {k: v for name in classes for k, v in arrays(HONEST[name], f"{name}/").items()}


def with_(base: float, **parts: float) -> dict[str, float]:
    return {**dict.fromkeys(PARTS, base), **{globals()[name]: b for name, b in parts.items()}}


def probes(
    shown: float | Mapping[str, float],
    precision: Precision = BF16,
    classes: tuple[str, ...] | None = None,
) -> Probes:
    seen = arrays(shown)
    own = honest(*(classes or (precision.name,)))
    return Probes(seen, own, RIGHT, precision, ("e",))


# -- bits -----------------------------------------------------------------------------------


def test_bits_are_those_of_each_part_that_is_not_zero_in_the_reference() -> None:
    right = {**RIGHT, "branches/zero": [0.0, 0.0], "branches/loss": [10.0]}
    found = bits(arrays(7.0), right)
    assert set(found.by_name) == set(PARTS)
    assert all(value == pytest.approx(7.0) for value in found.by_name.values())


def test_forward_is_what_goes_into_and_out_of_out_projections_and_the_head_the_rest_gradient() -> (
    None
):
    found = Bits({part: float(i) for i, part in enumerate(PARTS, 1)})
    assert (found.forward, found.gradient) == (2.0, 1.0)
    assert Bits({UP: 3.0, DOWN: 5.0, PARTS[4]: 4.0, HEAD: 6.0}).forward == 4.0


def test_a_class_is_told_by_the_name_before_the_first_slash() -> None:
    found = of_class({"BF16/branches/a": [1.0], "FP8/branches/a": [2.0], "BF16x/b": [3.0]}, "BF16")
    assert found == {"branches/a": [1.0]}


# -- borders --------------------------------------------------------------------------------


def test_a_part_may_be_three_quarters_of_a_bit_rougher_than_honest_and_no_more() -> None:
    border = Border(KNOWN["BF16"], Bits(dict.fromkeys(PARTS, 7.5)))
    assert border.short(Bits(with_(7.5, UP=6.75))) == {}
    assert border.short(Bits(with_(7.5, UP=6.7))) == {UP: pytest.approx(0.05)}


def test_a_part_that_is_better_by_nature_need_only_be_as_good_as_most() -> None:
    border = Border(KNOWN["BF16"], Bits(with_(7.5, UP=11.0)))
    assert border.limit(UP) == 6.75
    assert border.limit(DOWN) == 6.75
    rough = Border(KNOWN["BF16"], Bits(with_(7.5, UP=6.0)))
    assert rough.limit(UP) == 5.25


@pytest.mark.parametrize(("elements", "slack"), [(1024, 0.75), (64, 0.75), (16, 1.5), (4, 3.0)])
def test_errors_of_few_elements_are_chance_and_get_more_slack(elements: int, slack: float) -> None:
    border = Border(KNOWN["BF16"], Bits(dict.fromkeys(PARTS, 7.5)), elements={UP: elements})
    assert border.limit(UP) == 7.5 - slack
    assert border.limit(DOWN) == 7.5 - 0.75


@pytest.mark.parametrize(("elements", "floor"), [(1024, 4.75), (64, 4.75), (16, 4.0), (4, 3.0)])
def test_the_floor_of_few_elements_lies_deeper_below_the_hosts_honest_run(
    elements: int, floor: float
) -> None:
    border = Border(KNOWN["BF16"], Bits({UP: 5.5}), host={UP: 5.5}, elements={UP: elements})
    assert border.floor(UP) == floor


@pytest.mark.parametrize(("elements", "slack"), [(64, 1.0), (40, math.sqrt(1.6)), (28, 1.51186)])
def test_the_slack_of_a_narrow_format_grows_where_few_elements_decide(
    elements: float, slack: float
) -> None:
    own, host = Bits(dict.fromkeys(PARTS, 2.3)), {UP: 1.5}
    border = Border(KNOWN["NVFP4"], own, host=host, deciding={UP: elements})
    assert border.limit(UP) == pytest.approx(2.3 - slack, abs=1e-4)
    assert border.limit(DOWN) == pytest.approx(1.3)
    assert border.floor(UP) == pytest.approx(min(0.5, max(1.5 - slack, -math.log2(0.95))), abs=1e-4)


def test_the_wider_slack_of_few_elements_lets_no_missing_gradient_pass() -> None:
    rough = Bits(dict.fromkeys(PARTS, 1.2))
    border = Border(KNOWN["MXFP4"], rough, deciding=dict.fromkeys(PARTS, 28.0))
    assert border.limit(UP) == pytest.approx(-math.log2(0.95))
    assert UP in border.short(Bits(with_(1.2, UP=0.0)))
    rougher = Border(KNOWN["MXFP4"], Bits(dict.fromkeys(PARTS, 0.9)), deciding={UP: 28.0})
    assert rougher.limit(UP) == pytest.approx(-0.1), "as with many elements"


def _of_few(
    part: str, bits_of_part: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return arrays with an element of most of the length of ``part``, and right ones."""
    right = {**RIGHT, part: [100.0, *RIGHT[part][1:]]}
    off = 2.0**-bits_of_part * math.hypot(*right[part])
    return {**arrays(1.9), part: [100.0 + off, *right[part][1:]]}, right


@pytest.mark.parametrize("precision", [MXFP4, FP16, BF16], ids=lambda one: one.name)
def test_elements_count_by_their_lengths_in_fp16_and_in_formats_of_8_bits_or_fewer(
    precision: Precision,
) -> None:
    out, query = PARTS[4], PARTS[0]
    usual = 1.9 if precision is MXFP4 else HONEST[precision.name]
    shown, right = _of_few(out, usual - 1.1)
    shown |= {name: one for name, one in arrays(usual).items() if name != out}
    shown[query] = arrays({**dict.fromkeys(PARTS, usual), query: usual - 1.1})[query]
    own = {f"{precision.name}/{k}": v for k, v in arrays(usual).items()}
    own[f"{precision.name}/{out}"] = _of_few(out, usual)[0][out]
    found = Probes(shown, own, right, precision, ()).branches()
    assert found.status is (Status.FAIL if precision is BF16 else Status.PASS), found.message


@pytest.mark.parametrize(("lack", "status"), [(1.1, Status.PASS), (1.2, Status.FAIL)])
def test_an_output_in_bf16_may_lack_more_where_few_elements_decide(
    lack: float, status: Status
) -> None:
    out, usual = PARTS[4], HONEST["BF16"]
    few, right = _of_few(out, usual - lack)
    shown = {**arrays(usual), out: few[out]}
    own = {f"BF16/{k}": v for k, v in {**arrays(usual), out: _of_few(out, usual)[0][out]}.items()}
    assert Probes(shown, own, right, BF16, ()).branches().status is status


def test_a_part_outside_the_layer_of_few_elements_has_the_usual_slack() -> None:
    shown, right = _of_few(PARTS[4], 1.9)
    own = {f"MXFP4/{k}": v for k, v in arrays(1.9).items()}
    own[f"MXFP4/{PARTS[4]}"] = shown[PARTS[4]]
    shown[HEAD] = arrays(with_(1.9, HEAD=0.6))[HEAD]
    found = Probes(shown, own, right, MXFP4, ()).branches()
    assert found.status is Status.FAIL
    assert "lm_head in probe head has 0.60 bits" in found.message


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_scaled_gradients_that_overflow_in_a_probe_are_called_so_and_never_pass(
    broken: float,
) -> None:
    shown = arrays(9.8)
    shown[UP] = [broken, *shown[UP][1:]]
    told = Probes(shown, honest("FP16"), RIGHT, FP16, ("e",))
    for finding in (told.branches(), told.live(), told.effective()):
        assert finding.status is Status.NOT_OBSERVED
        assert finding.message.startswith("1 of 8 parts are not finite, such as layers.0.mlp.up_p")
    assert told.measured().effective != "FP16"
    own = Probes({**shown}, honest("BF16"), RIGHT, BF16, ("e",))
    assert own.branches().status is Status.FAIL


@pytest.mark.parametrize("name", KNOWN)
def test_a_class_has_a_floor_whatever_was_measured_as_honest(name: str) -> None:
    tampered = Border(KNOWN[name], Bits(dict.fromkeys(PARTS, 0.5)))
    assert set(tampered.short(Bits(dict.fromkeys(PARTS, KNOWN[name].floor - 0.1)))) == set(PARTS)
    assert tampered.short(Bits(dict.fromkeys(PARTS, KNOWN[name].floor + 0.1))) == {}


@pytest.mark.parametrize(
    ("host", "floor"), [(9.0, 5.0), (5.75, 5.0), (4.75, 4.0), (3.75, 3.0), (3.0, 3.0), (-1.0, 3.0)]
)
def test_a_floor_follows_the_hosts_honest_run_down_by_two_bits_and_no_further(
    host: float, floor: float
) -> None:
    border = Border(KNOWN["BF16"], Bits(dict.fromkeys(PARTS, 0.5)), host={UP: host})
    assert border.floor(UP) == floor
    assert border.floor(DOWN) == KNOWN["BF16"].floor == 5.0, "of that the host has shown nothing"


@pytest.mark.parametrize(
    "part",
    [
        *("c_fc.bias", "ln_f.weight", "ln_1.weight", "LayerNorm.weight"),
        "token_type_embeddings.weight",
    ],
)
@pytest.mark.parametrize(("host", "floor"), [(None, 3.0), (9.0, 3.0), (2.75, 2.0), (-1.0, 1.0)])
def test_the_floor_of_a_sum_over_all_tokens_lies_two_bits_deeper(
    part: str, host: float | None, floor: float
) -> None:
    item = f"branches/h.0.{part}"
    border = Border(KNOWN["BF16"], Bits({item: 0.5}), host={} if host is None else {item: host})
    assert border.floor(item) == floor


@pytest.mark.parametrize(
    ("part", "host", "told"),
    [
        *(("c_fc.weight", 3.5, True), ("c_fc.weight", 2.5, False), ("c_fc.weight", 1.0, True)),
        *(("ln_1.weight", 1.25, True), ("ln_1.weight", 0.75, False), ("ln_1.bias", -0.5, False)),
    ],
)
def test_what_no_honest_run_gets_right_is_left_out_and_a_sum_may_have_no_bits_at_all(
    part: str, host: float, *, told: bool
) -> None:
    item = f"head/h.0.{part}"
    border = Border(KNOWN["BF16"], Bits({item: 0.5}), host={item: host})
    assert (item not in border.untold) is told


def test_bits_that_are_no_number_reach_no_class() -> None:
    border = Border(KNOWN["FP8"], Bits(dict.fromkeys(PARTS, 4.0)))
    assert UP in border.short(Bits(with_(4.0, UP=math.nan)))


# -- E2 -------------------------------------------------------------------------------------


def test_an_honest_run_keeps_every_rule() -> None:
    judged = probes(HONEST["BF16"] - 0.3)
    for finding in (judged.branches(), judged.live(), judged.effective()):
        assert (finding.level, finding.status) == (Level.BLOCK, Status.PASS)
        assert finding.evidence == ("e",)
    assert judged.honest_is_honest()


def test_one_part_that_is_too_rough_fails_by_name_with_its_bits_and_the_honest_ones() -> None:
    finding = probes(with_(7.4, UP=4.6)).branches()
    assert (finding.id, finding.status, finding.basis) == ("E2", Status.FAIL, "calibrated")
    assert finding.message.startswith("1 of 8 parts are wrong or too rough: layers.0.mlp.up_proj")
    assert "4.60 bits, honest 7.40" in finding.message
    assert finding.measured == "4.60 bits (layers.0.mlp.up_proj in probe branches)"
    assert (finding.honest, finding.limit) == ("7.40 bits", "6.65 bits")


def test_of_several_the_part_that_lacks_most_is_named() -> None:
    finding = probes(with_(7.4, UP=4.6, HEAD=0.0)).branches()
    assert "2 of 8 parts" in finding.message
    assert "lm_head in probe head has" in finding.message


def test_in_float32_two_bits_less_are_allowed_and_a_class_less_is_not() -> None:
    assert probes(17.6, FP32).branches().status is Status.PASS
    assert probes(17.4, FP32).branches().status is Status.FAIL
    assert probes(10.5, FP32).branches().status is Status.FAIL


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_part_that_is_no_number_fails(bad: float) -> None:
    seen = arrays(7.4)
    seen[UP] = [bad] * 64
    judged = Probes(seen, honest("BF16"), RIGHT, BF16, ())
    assert judged.branches().status is Status.FAIL
    assert judged.effective().status is Status.FAIL


def test_a_part_that_was_not_shown_fails() -> None:
    seen = {part: value for part, value in arrays(7.4).items() if part != UP}
    judged = Probes(seen, honest("BF16"), RIGHT, BF16, ())
    assert judged.branches().status is Status.FAIL
    assert "up_proj" in judged.branches().message


def test_without_an_honest_run_of_the_declared_class_nothing_is_observed() -> None:
    judged = Probes(arrays(7.4), honest("FP8"), RIGHT, BF16, ())
    assert judged.branches().status is Status.NOT_OBSERVED
    assert judged.effective().status is Status.NOT_OBSERVED
    assert not judged.honest_is_honest()


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_an_honest_run_that_is_not_of_its_class_is_not_honest(bad: float) -> None:
    own = honest("BF16")
    assert Probes(arrays(7.4), own, RIGHT, BF16, ()).honest_is_honest()
    own[f"BF16/{UP}"] = [bad] * 64
    judged = Probes(arrays(7.4), own, RIGHT, BF16, ())
    assert not judged.honest_is_honest()
    rough = Probes(arrays(4.0), arrays(4.0, "BF16/"), RIGHT, BF16, ())
    assert not rough.honest_is_honest()
    assert rough.branches().status is Status.FAIL


@pytest.mark.parametrize("rougher", ["BF16/", f"BF16{WIDE_LOSS}/"])
def test_of_two_honest_runs_the_rougher_is_the_measure_part_by_part(rougher: str) -> None:
    own = arrays(7.4, "BF16/") | arrays(7.4, f"BF16{WIDE_LOSS}/")
    own |= arrays({UP: 6.5}, rougher)

    def status(shown: dict[str, float]) -> Status:
        return Probes(arrays(shown), own, RIGHT, BF16, ()).branches().status

    assert status(with_(7.4, UP=5.8)) is Status.PASS
    assert status(with_(7.4, UP=5.7)) is Status.FAIL
    assert status(with_(7.4, DOWN=6.5)) is Status.FAIL
    once = Probes(arrays(with_(7.4, UP=6.5)), honest("BF16"), RIGHT, BF16, ())
    assert once.branches().status is Status.FAIL  # evidence that has one alone


def test_either_run_of_the_device_may_not_be_much_rougher_than_the_hosts_two() -> None:
    half = [part for part in PARTS if part.startswith("branches/")]
    own = honest("BF16") | arrays(5.5, f"BF16{WIDE_LOSS}/")
    one = RIGHT | arrays(dict.fromkeys(half, 7.4), "host/")
    two = one | arrays(dict.fromkeys(half, 5.5), f"host{WIDE_LOSS}/")
    assert not Probes(arrays(7.4), own, one, BF16, ()).honest_is_honest()
    assert Probes(arrays(7.4), own, two, BF16, ()).honest_is_honest()


def test_a_part_that_not_even_the_hosts_honest_run_gets_right_is_left_out_and_few_may_be() -> None:
    def judged(shown: Mapping[str, float], **rough: float) -> Probes:
        seen = {p: value for p, value in with_(7.4, **rough).items() if p.startswith("branches/")}
        own = arrays(with_(7.4, **rough), "BF16/")
        return Probes(arrays(shown), own, RIGHT | arrays(seen, "host/"), BF16, ())

    assert judged(with_(7.4, UP=2.0), UP=2.4).honest_is_honest()
    assert judged(with_(7.4, UP=2.0), UP=2.4).branches().status is Status.PASS
    assert judged(with_(7.4, DOWN=2.0), UP=2.4).branches().status is Status.FAIL
    assert judged(with_(7.4, UP=2.0), UP=3.1).branches().status is Status.FAIL
    assert not judged(with_(7.4), UP=2.4, DOWN=2.4).honest_is_honest()
    assert not judged(with_(7.4), UP=1.4).honest_is_honest(), "that is no rough run, but none"


def test_a_message_tells_a_rough_device_from_weights_that_are_rough_on_the_host_too() -> None:
    half = [part for part in PARTS if part.startswith("branches/")]
    for on_host, told in ((2.0, ROUGH_ON_HOST), (7.4, ROUGH)):
        right = RIGHT | arrays(dict.fromkeys(half, on_host), "host/")
        judged = Probes(arrays(2.0), arrays(2.0, "BF16/"), right, BF16, ())
        assert not judged.honest_is_honest()
        assert [one.message for one in judged.without_yardstick("E1", "G1")] == [told, told]


def test_a_norms_gain_has_more_room_where_ranks_share_the_model() -> None:
    gain = "branches/model.layers.0.input_layernorm.weight"
    honest_run = Bits({gain: 7.5, UP: 7.5, DOWN: 7.5})
    known = BF16.judged_as
    assert known is not None
    assert Border(known, honest_run).limit(gain) == 6.75
    together = Border(known, honest_run, shared=True)
    assert (together.limit(gain), together.limit(UP)) == (6.0, 6.75)


# -- E3 -------------------------------------------------------------------------------------


def test_a_model_that_computes_from_other_weights_or_tokens_has_no_bits_and_fails() -> None:
    finding = probes(-0.5).live()
    assert (finding.id, finding.status) == ("E3", Status.FAIL)
    assert "(probe branches, head)" in finding.message


def test_one_stale_probe_is_enough() -> None:
    stale = {part: 0.1 if part.startswith("head/") else 7.4 for part in PARTS}
    finding = probes(stale).live()
    assert finding.status is Status.FAIL
    assert "(probe head)" in finding.message


def test_one_wrong_part_is_not_yet_a_stale_model() -> None:
    assert probes(with_(7.4, UP=-3.0)).live().status is Status.PASS


def test_even_fp8_computes_from_live_weights() -> None:
    assert probes(3.6, FP8).live().status is Status.PASS


@pytest.mark.parametrize("stale", [0.4, -0.5])
@pytest.mark.parametrize(("of_honest", "status"), [(0.9, "not_observed"), (3.0, "fail")])
def test_a_plugins_format_in_which_honest_numbers_underflow_accuses_nobody(
    stale: float, of_honest: float, status: str
) -> None:
    own = arrays(of_honest, f"{DECLARED.name}/")
    finding = Probes(arrays(stale), own, RIGHT, DECLARED, ("e",)).live()
    assert finding.status.value == status
    assert ("does the format lack a scale" in finding.message) == (status != "fail")
    # The honest run of a format of llmb's own can be spoiled, but is never so rough by itself.
    spoiled = Probes(arrays(stale), arrays(0.9, "BF16/"), RIGHT, BF16, ("e",)).live()
    assert spoiled.status is Status.FAIL


# -- P1 -------------------------------------------------------------------------------------

BELOW = {
    "FP32": ("TF32", "BF16", "FP8"),
    "TF32": ("BF16", "FP8"),
    "FP16": ("BF16", "FP8"),
    "BF16": ("FP8",),
}


@pytest.mark.parametrize("precision", [FP32, TF32, FP16, BF16, FP8], ids=lambda p: p.name)
@pytest.mark.parametrize("bordered", [True, False])
def test_a_run_computes_in_the_class_it_declares(precision: Precision, bordered: bool) -> None:
    classes = (precision.name, *(BELOW.get(precision.name, ()) if bordered else ()))
    judged = probes(HONEST[precision.name] - 0.3, precision, classes)
    assert judged.measured().effective == precision.name
    assert judged.effective().status is Status.PASS


@pytest.mark.parametrize(
    ("declared", "really"),
    [(FP32, "TF32"), (FP32, "BF16"), (FP32, "FP8"), (TF32, "BF16"), (FP16, "FP8"), (BF16, "FP8")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("bordered", [True, False])
def test_the_label_is_lowered_to_what_was_measured(
    declared: Precision, really: str, bordered: bool
) -> None:
    classes = (declared.name, *(BELOW[declared.name] if bordered else ()))
    judged = probes(HONEST[really] - 0.2, declared, classes)
    finding = judged.effective()
    assert (finding.id, finding.status) == ("P1", Status.FAIL)
    assert judged.measured().effective == really
    assert finding.message.startswith(f"declared {declared.name}, computes in {really}: ")
    assert f"honest {HONEST[declared.name]:.2f} bits" in finding.message


def test_one_rough_part_lowers_the_label_of_all() -> None:
    judged = probes(with_(7.4, UP=4.1), BF16, ("BF16", "FP8"))
    assert judged.measured().effective == "FP8"


def test_what_reaches_no_class_has_none() -> None:
    judged = probes(0.5, BF16, ("BF16", "FP8"))
    assert judged.measured().effective is None
    assert "computes in no known format" in judged.effective().message
    assert probes(0.5, BF16).measured().effective is None


def test_a_run_better_than_it_declares_is_of_the_class_it_declares() -> None:
    judged = probes(19.0, BF16, ("BF16", "FP8"))
    assert judged.effective().status is Status.PASS
    assert judged.measured().effective == "BF16"


@pytest.mark.parametrize("precision", [MXFP4, DECLARED], ids=["known", "declared"])
def test_a_narrow_format_is_judged_by_an_honest_run_in_it(precision: Precision) -> None:
    own = arrays(2.3, f"{precision.name}/")
    good = Probes(arrays(1.9), own, RIGHT, precision, ())
    findings = (good.branches(), good.live(), good.effective())
    assert {finding.status for finding in findings} == {Status.PASS}
    assert good.measured().effective == precision.name
    bad = Probes(arrays(1.3), own, RIGHT, precision, ())
    assert bad.branches().status is Status.FAIL
    assert bad.effective().status is Status.FAIL
    assert bad.measured().effective is None


def test_parts_of_a_narrow_format_may_differ_more_than_their_mean() -> None:
    nvfp4 = Precision(name="NVFP4", bits=4, dtype="bfloat16")
    own = arrays(2.3, "NVFP4/")

    def judged(shown: Mapping[str, float]) -> Probes:
        return Probes(arrays(shown), own, RIGHT, nvfp4, ())

    assert judged(with_(2.2, UP=1.35)).branches().status is Status.PASS
    assert judged(with_(1.95)).branches().status is Status.PASS
    together = judged(with_(1.85))
    assert together.branches().status is together.effective().status is Status.FAIL
    assert together.measured().effective is None
    assert "together are too rough: on average 0.45 bits less" in together.branches().message
    made_up = dict.fromkeys(PARTS, 1.85) | {UP: 9.0, DOWN: 9.0}
    assert judged(made_up).branches().status is Status.PASS, "a third is as honest ones"
    hidden = dict.fromkeys(PARTS, 1.6) | {UP: 9.0}
    assert judged(hidden).branches().status is Status.FAIL, "better ones make up for nothing"


def test_a_mean_that_is_no_number_is_not_reached() -> None:
    border = Border(KNOWN["NVFP4"], Bits(dict.fromkeys(PARTS, 2.3)))
    assert not border.is_reached(Bits(with_(2.3, UP=math.nan)))
    assert not border.is_reached(Bits(with_(2.3, UP=-40.0)))


def test_an_eight_bit_run_that_computes_in_less_is_named_by_the_border_it_reaches() -> None:
    mxfp8 = Precision(name="MXFP8", bits=8, dtype="bfloat16")
    every = {"MXFP8": 4.0, "FP8": 3.9, "MXFP6": 3.0, "NVFP4": 2.3, "MXFP4": 1.9}
    own = {k: v for name, b in every.items() for k, v in arrays(b, f"{name}/").items()}
    for shown, name in ((3.6, "MXFP8"), (2.9, "MXFP6"), (2.2, "NVFP4"), (1.8, "MXFP4")):
        judged = Probes(arrays(shown), own, RIGHT, mxfp8, ())
        assert judged.measured().effective == name
        assert judged.effective().status is (Status.PASS if name == "MXFP8" else Status.FAIL)
    by_floors = Probes(arrays(2.4), arrays(4.0, "MXFP8/"), RIGHT, mxfp8, ())
    assert by_floors.measured().effective is None, "floors of narrow formats lie too near"


@pytest.mark.parametrize("shown", [7.4, 2.0, 0.1, -3.0])
def test_of_a_format_that_nobody_knows_nothing_is_observed_and_the_note_says_what_helps(
    shown: float,
) -> None:
    judged = Probes(arrays(shown), {}, RIGHT, UNKNOWN, ("e",))
    findings = [judged.effective(), *judged.without_yardstick("E1", "E2", "G1")]
    for finding in findings:
        assert finding.status is Status.NOT_OBSERVED
        assert "Precision(format=...)" in finding.message
    live = judged.live()
    assert live.status is (Status.PASS if shown >= 1.5 else Status.NOT_OBSERVED)
    assert not judged.honest_is_honest()
    assert judged.measured().effective is None


def test_below_the_derived_floor_of_declared_data_nothing_is_observed() -> None:
    """Nobody has measured an honest run in it: without a yardstick it can convict nobody."""
    rough = arrays(1.0, "ACME5/")
    judged = Probes(arrays(1.0), rough, RIGHT, DECLARED, ())
    assert not judged.honest_is_honest()
    assert judged.effective().status is Status.NOT_OBSERVED
    known = Probes(arrays(0.5), arrays(0.5, "MXFP4/"), RIGHT, MXFP4, ())
    assert known.effective().status is Status.FAIL


def test_a_format_without_a_significand_cannot_show_that_anything_was_computed() -> None:
    """Data that are noise would make any run as good as an honest one."""
    noise = formats.Format(formats.Element(3, 0, 16.0, scale="e8m0", block=32))
    precision = Precision(name="ACME4", bits=4, dtype="bfloat16", format=noise)
    for shown in (1.4, 0.8):
        judged = Probes(arrays(shown), arrays(shown, "ACME4/"), RIGHT, precision, ())
        assert judged.live().status is Status.NOT_OBSERVED


def test_the_fewest_bits_forward_and_backward_are_recorded_beside_the_honest_ones() -> None:
    shown = with_(7.4, UP=7.0, DOWN=7.1234)
    found = probes(shown).measured().bits
    assert (found.forward_min, found.gradient_min) == (7.123, 7.0)
    assert (found.honest_forward_min, found.honest_gradient_min) == (7.4, 7.4)


@pytest.mark.parametrize("seed", range(30))
def test_an_honest_run_beside_another_honest_run_is_never_accused(seed: int) -> None:
    """Bits of two honest kernels differ by a few tenths in each part."""
    draw = random.Random(seed)
    mine, theirs = ({p: 7.4 + draw.uniform(-0.3, 0.3) for p in PARTS} for _ in range(2))
    judged = Probes(arrays(mine), arrays(theirs, "BF16/") | honest("FP8"), RIGHT, BF16, ())
    for finding in (judged.branches(), judged.live(), judged.effective()):
        assert finding.status is Status.PASS


# -- part by part ---------------------------------------------------------------------------


def test_a_part_that_is_too_rough_breaks_e2_by_itself_and_no_other_does() -> None:
    judged = probes(with_(7.4, UP=4.0))
    broken = [one for one in judged.parts(classes=False) if not one.kept]
    assert [one.part for one in broken] == [UP.removeprefix("branches/")]
    assert (broken[0].measured, broken[0].honest) == ("4.00 bits", "7.40 bits")
    assert broken[0].what == "gradient of layers.0.mlp.up_proj in probe branches"
    assert judged.branches().status is Status.FAIL


def test_the_output_of_a_branch_counts_for_its_out_projection() -> None:
    out = "branches/out/model.layers.0.mlp.down_proj.weight"
    found = probes({**with_(7.4), out: 4.5}).parts(classes=False)
    (broken,) = [one for one in found if not one.kept]
    assert broken.part == DOWN.removeprefix("branches/")
    assert broken.what == "output of layers.0.mlp.down_proj"


@pytest.mark.parametrize("classes", [("BF16", "FP8"), ("BF16",)], ids=["full", "quick"])
def test_p1_says_which_format_a_part_reaches(classes: tuple[str, ...]) -> None:
    judged = probes(with_(7.4, UP=4.0), BF16, classes)
    found = {one.part: one.measured for one in judged.parts(classes=True)}
    assert found[UP.removeprefix("branches/")] == "4.00 bits (FP8)"
    assert found[DOWN.removeprefix("branches/")] == "7.40 bits (BF16)"


def test_a_part_is_kept_where_all_of_it_reaches_the_limit_that_is_shown() -> None:
    def up(value: float) -> PartFinding:
        judged = probes(with_(7.4, UP=value))
        return next(one for one in judged.parts(classes=False) if one.part in UP)

    limit = float(up(6.7).limit.split()[0])
    assert up(limit + 0.02).kept
    assert not up(limit - 0.02).kept
