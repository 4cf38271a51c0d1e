"""Descriptions of hardware: the shipped ones hold, and a wrong one is told in a line."""

from __future__ import annotations

import json

import pytest

from llmb.errors import UsageError
from llmb.projection import hardware_files
from llmb.projection.hardware_files import load


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
        ({"tflops": 3}, "tflops is 3"),
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
        (str(path), "peak_flops"),
        ("h1000", "it is one of a100-40"),
        (str(tmp_path / "none.json"), "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            load(name)
    path.write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        load(str(path))
