"""The one table of number formats: what each is, what a plugin may declare, what it may not."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from llmb import config
from llmb.config import Precision
from llmb.formats import KNOWN, Element, Format, class_of, fault_of, narrower

E2M2 = Element(2, 2, 7.0, scale="e8m0", block=32)
FIVE = Format(E2M2)


def precision(**changes: object) -> Precision:
    return Precision(**{"name": "ACME5", "bits": 5, "dtype": "bfloat16", **changes})


# -- known formats ----------------------------------------------------------------------------


def test_every_known_format_has_the_bits_of_its_data_and_a_name_of_its_own() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert known.format is None or known.bits == known.format.bits
        fault = fault_of(known.name, known.bits, known.dtype or "bfloat16", None)
        assert (fault is None) is (known.dtype != "float64")


@pytest.mark.parametrize(("name", "bits"), [("FP64", 64), ("ACME", 8)])
def test_a_dtype_without_a_wider_one_is_refused(name: str, bits: int) -> None:
    fault = fault_of(name, bits, "float64", None)
    assert fault == "dtype 'float64', and no wider one to judge it by: use 'float32'"


def test_the_order_is_from_wide_to_narrow_and_so_are_the_borders() -> None:
    bits = [known.bits for known in KNOWN]
    assert bits == sorted(bits, reverse=True)
    for known in KNOWN:
        below = narrower(known)
        assert all(KNOWN.index(each) > KNOWN.index(known) for each in below)
        if known.bits > 8:  # floors tell these apart where no border was measured
            assert all(known.floor >= each.floor for each in below)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("TF32", [(8, 10), (8, 10)]),
        ("FP8", [(4, 3), (5, 2)]),
        ("MXFP8", [(4, 3), (5, 2)]),
        ("MXFP6", [(3, 2), (3, 2)]),
        ("MXFP4", [(2, 1), (2, 1)]),
        ("NVFP4", [(2, 1), (2, 1)]),
    ],
)
def test_known_data_are_those_of_the_formats_documents(
    name: str, elements: list[tuple[int, int]]
) -> None:
    data = class_of(name, None).format
    assert [(e.exponent_bits, e.mantissa_bits) for e in (data.forward, data.gradient)] == elements
    block, scale = {
        "TF32": (None, "none"),
        "FP8": (None, "float32"),
        "NVFP4": (16, "e4m3"),
    }.get(name, (32, "e8m0"))
    assert (data.forward.block, data.forward.scale) == (block, scale)
    assert data.head == (name == "TF32")


def test_the_plain_formats_of_config_are_known() -> None:
    for plain in (config.FP32, config.TF32, config.FP16, config.BF16):
        known = plain.judged_as
        assert (known.name, known.bits, known.dtype) == (plain.name, plain.bits, plain.dtype)


# -- formats that a plugin declares -------------------------------------------------------------


def test_a_declared_format_comes_back_from_json_and_is_judged_by_its_data() -> None:
    declared = precision(format=FIVE)
    again = Precision.model_validate_json(declared.model_dump_json())
    assert again == declared
    known = again.judged_as
    assert (known.name, known.format, known.declared) == ("ACME5", FIVE, True)
    assert narrower(known) == tuple(each for each in KNOWN if each.bits < 5)


def test_records_without_the_field_are_read_as_before() -> None:
    old = json.loads(config.BF16.model_dump_json())
    del old["format"]
    assert Precision.model_validate(old) == config.BF16


def test_without_data_nobody_knows_what_another_format_is() -> None:
    assert precision().judged_as is None


def test_a_known_name_means_the_known_data_whatever_a_record_says() -> None:
    """As a stranger's record could be made: past the checks of a Precision."""
    forged = Precision.model_construct(name="MXFP8", bits=8, dtype="bfloat16", format=FIVE)
    assert forged.judged_as is class_of("MXFP8", None)


@pytest.mark.parametrize("bits", range(1, 11))
def test_derived_floors_are_no_higher_than_the_measured_ones(bits: int) -> None:
    known = class_of("ACME", Format(Element(5, bits, 57344.0, scale="float32")))
    for measured in ("FP8", "BF16", "TF32"):
        one = class_of(measured, None)
        wide = {"FP8": 2, "BF16": 7, "TF32": 10}[measured]
        if bits <= wide:
            assert known.floor <= one.floor
            assert known.floor_of_logits <= one.floor_of_logits


def test_a_format_of_noise_is_too_rough_to_be_judged() -> None:
    noise = Format(Element(3, 0, 16.0, scale="e8m0", block=32))
    assert class_of("ACME", noise).is_too_rough
    assert not any(known.is_too_rough for known in KNOWN)


REFUSED = {
    "data of a known name": ({"name": "MXFP8", "bits": 8}, "not those of MXFP8"),
    "bits": ({"bits": 4}, "4 bits, the narrowest operand of its data has 5"),
    "a space": ({"name": "BF16 "}, "'BF16 ' as its name"),
    "another alphabet": ({"name": "\u0412F16"}, "as its name"),
    "a letter like a digit": ({"name": "BFI6"}, "BF16 has 16"),
    "a hyphen": ({"name": "BF-16"}, "BF16 has 16"),
    "a better one's name in it": ({"name": "MXFP8-fast"}, "MXFP8 has 8"),
    "a path": ({"name": "../x"}, "as its name"),
    "a long name": ({"name": "A" * 25}, "as its name"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_data_that_are_not_what_the_name_says_are_refused(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        precision(**{"format": FIVE, **changes})


EIGHT = Format(Element(4, 3, 448.0, scale="float32"))
WIDE = Format(Element(8, 7, 3e38))


@pytest.mark.parametrize(
    ("name", "bits", "data", "dtype", "sound"),
    [
        ("FP8", 8, None, "float16", False),
        ("MXFP8", 8, None, "float16", False),
        ("ACME8", 8, EIGHT, "float16", False),
        ("FP8", 8, None, "bfloat16", True),
        ("FP8", 8, None, "float32", True),
        ("ACME8", 8, EIGHT, "float32", True),
        ("NVFP4", 4, None, "float16", True),
        ("ACME5", 5, FIVE, "float16", True),
        ("ACME16", 16, WIDE, "float16", True),
        ("FP16", 16, None, "float16", True),
        ("ACME8", 8, None, "float16", True),
    ],
)
def test_a_format_whose_steps_are_compared_may_not_be_kept_where_none_can_be(
    name: str, bits: int, data: Format | None, dtype: str, sound: bool
) -> None:
    fault = fault_of(name, bits, dtype, data)
    assert (fault is None) is sound
    assert sound or "dtype 'float16', in which no step of 8 bits can be compared" in str(fault)


@pytest.mark.parametrize(
    "change",
    [
        {"exponent_bits": 50},
        {"block": 10**9},
        {"largest": "NaN"},
        {"scale": "e5m3"},
        {"code": "import os"},
        {"mantissa_bits": "wide"},
    ],
    ids=str,
)
def test_data_out_of_range_are_refused_in_json_too(change: dict[str, object]) -> None:
    found = json.loads(precision(format=FIVE).model_dump_json())
    found["format"]["forward"] |= change
    with pytest.raises(ValidationError):
        Precision.model_validate_json(json.dumps(found))
