"""Which runs a maintainer has computed again: a file beside the folders, read strictly."""

from __future__ import annotations

import json

import pytest

from llmb.errors import BundleRefusedError
from llmb.records.recomputed_list import RECOMPUTED, read_recomputed

ONE = {"llmb_version": "0.2.0", "date": "2026-11-26", "steps": 3, "of_steps": 66}


def test_without_a_file_nothing_was_computed_again(tmp_path):
    assert read_recomputed(tmp_path).bundles == {}


def test_a_bundle_is_listed_by_its_id(tmp_path):
    data = {"schema": "llmb.recomputed/1", "bundles": {"a" * 64: ONE}}
    (tmp_path / RECOMPUTED).write_text(json.dumps(data))
    (found,) = read_recomputed(tmp_path).bundles.values()
    assert (found.steps, found.of_steps) == (3, 66)


@pytest.mark.parametrize(
    "bundles", [{"short": ONE}, {"a" * 64: {**ONE, "date": "today"}}, {"a" * 64: {}}, []]
)
def test_anything_else_is_refused(tmp_path, bundles):
    data = {"schema": "llmb.recomputed/1", "bundles": bundles}
    (tmp_path / RECOMPUTED).write_text(json.dumps(data))
    with pytest.raises(BundleRefusedError, match=RECOMPUTED):
        read_recomputed(tmp_path)
