"""The fuzzed reader on inputs that are made here: without a fuzzer, and in seconds."""

from __future__ import annotations

import json
import os
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmb.errors import BundleRefusedError
from llmb.records import strict_json
from llmb.submission import recompute_time, verify
from tests import attacks
from tests.fuzz import target as fuzz


@pytest.fixture(scope="module")
def target():
    before = recompute_time._RESAMPLES, sys.dont_write_bytecode
    yield fuzz.Target(attacks.honest_run())
    recompute_time._RESAMPLES, sys.dont_write_bytecode = before


def test_the_honest_files_are_verified_as_seeds_and_not_refused(target):
    seeds = target.seeds(2**20)
    assert len(seeds) == 2 + len(target.names)
    for name in ("zip", *target.names):
        before = target.verified
        target.one(seeds[name.replace("/", "_")])
        assert target.verified == before + 1, name


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 6))]
)
def test_changed_files_are_verified_or_refused_and_nothing_else_happens(target, seed):
    draw = random.Random(seed)
    seeds = list(target.seeds(2**20).values())
    for _ in range(60):
        data = draw.choice(seeds)
        for _ in range(draw.randint(1, 3)):
            data = fuzz.mutate(data, 2**20, draw.randrange(2**32), fuzz.plain)
        target.one(data)


def test_the_watch_sees_what_a_reader_must_not_do(target, tmp_path):
    target.watch.on = True
    try:
        (tmp_path / "x").write_text("written")
        os.mkdir(tmp_path / "y")
    finally:
        target.watch.on = False
    assert len(target.watch.acts) == 2
    target.watch.acts.clear()


def test_an_error_that_nobody_foresaw_is_no_refusal_to_the_fuzzer(target, monkeypatch):
    def broken(case):
        raise KeyError("x")

    monkeypatch.setitem(verify._CHECKS, "files", broken)
    with pytest.raises(AssertionError, match=verify.UNFORESEEN):
        target.one(target.seeds(2**20)["record.json"])


@settings(max_examples=200, deadline=None)
@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_strict_json_takes_what_means_one_thing_and_gives_it_back(raw):
    text = json.dumps(raw, ensure_ascii=False).encode(errors="surrogatepass")
    try:
        value = strict_json.loads(text, "x")
    except BundleRefusedError:
        return
    assert strict_json.same(value, json.loads(text))
