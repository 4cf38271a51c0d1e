"""Descriptions of hardware: the shipped ones hold, and a wrong one is told in a line."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from llmb.errors import UsageError
from llmb.projection import hardware_files
from llmb.projection.hardware_files import Hardware, load


@pytest.mark.parametrize("name", hardware_files.names())
def test_a_shipped_description_names_itself_and_its_source(name):
    found = load(name)
    assert found.name == name
    assert len(found.source) > 40
    # A value of a day's large products is between a TFLOP/s and a PFLOP/s.
    assert 1e12 < found.peak_flops * found.sustained_fraction < 1e15
    assert found.link_bytes_per_second > found.network_bytes_per_second


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak_flops": 312}, "peak_flops is 312"),
        ({"memory_bytes": 80}, "memory_bytes is 80"),
        ({"sustained_fraction": 86}, "sustained_fraction is 86"),
        ({"devices_per_node": 0}, "devices_per_node is 0"),
        ({"peak_flops": "fast"}, "peak_flops is 'fast'"),
        ({"peak_flops": -989e12}, "peak_flops is -989"),
        ({"peak_flops": float("nan")}, "peak_flops is nan"),
        ({"memory_bytes_per_second": 3350}, "(FLOP/s, bytes, bytes/s, s, W)"),
        ({"link_bytes_per_second": 450}, "link_bytes_per_second is 450"),
        ({"network_bytes_per_second": 400}, "network_bytes_per_second is 400"),
        ({"latency_s": 10}, "latency_s is 10"),
        ({"power_w": 0.7}, "power_w is 0.7"),
        ({"name": ""}, "name is ''"),
        ({"description": ["x" * 10**5]}, "xxx..."),
        ({"tflops": 3}, "tflops is unknown; fields are name,"),
        ({"source": None}, "source"),
    ],
)
def test_a_wrong_unit_or_field_is_named_with_its_value(tmp_path, change, words):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**load("h100").model_dump(), **change}))
    with pytest.raises(UsageError) as error:
        load(str(path))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_field_an_unknown_name_and_no_file_are_one_line(tmp_path):
    path = tmp_path / "mine.json"
    fields = load("h100").model_dump()
    del fields["peak_flops"]
    path.write_text(json.dumps(fields))
    for name, words in (
        (str(path), "peak_flops is missing"),
        ("h1000", "it is one of a100-40"),
        (str(tmp_path / "none.json"), "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            load(name)
    for text, words in (
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 10**5, "not JSON"),
        ("[1]", r"the whole is \[1\]"),
        ("null", "the whole is None"),
        (" " * 2**21, "more than 1 MiB"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=words) as error:
            load(str(path))
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 400
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(str(path))


def test_links_may_be_left_out_and_are_not_known_then(tmp_path):
    fields = load("h100").model_dump()
    for name in ("link_bytes_per_second", "network_bytes_per_second", "power_w"):
        del fields[name]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(fields))
    found = load(str(path))
    assert found.link_bytes_per_second is found.network_bytes_per_second is found.power_w is None


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("peak_flops", 1e9, 1e18),
        ("memory_bytes", 10**8, 10**14),
        ("memory_bytes_per_second", 1e8, 1e15),
        ("link_bytes_per_second", 1e6, 1e14),
        ("message_bytes_per_second", 1e6, 1e14),
        ("network_bytes_per_second", 1e6, 1e14),
        ("devices_per_node", 1, 1024),
        ("power_w", 1, 1e5),
    ],
)
def test_a_figure_may_be_as_small_or_large_as_any_device_has_it(field, least, most):
    whole = load("h100").model_dump()
    for value in (least, most):
        assert getattr(Hardware.model_validate({**whole, field: value}), field) == value
    for value in (least / 2 if isinstance(least, float) else least - 1, most * 2):
        with pytest.raises(ValidationError, match=field):
            Hardware.model_validate({**whole, field: value})


@pytest.mark.parametrize("field", ["sustained_fraction", "attention_fraction", "latency_s"])
def test_a_share_or_a_latency_of_nothing_is_none(field):
    whole = load("h100").model_dump()
    with pytest.raises(ValidationError, match="greater than 0"):
        Hardware.model_validate({**whole, field: 0})
    most = 0.1 if field == "latency_s" else 1.0
    assert getattr(Hardware.model_validate({**whole, field: most}), field) == most
    with pytest.raises(ValidationError, match="less than or equal"):
        Hardware.model_validate({**whole, field: most * 1.01})
