"""Every attack is refused with one line and its exit code, and leaves nothing behind.

What is large is a twentieth as large here, and so are the limits that it is above. At the limits
themselves ``tests/e2e/test_hostile_bundles.py`` has the whole table refused.
"""

from __future__ import annotations

import re
import signal
import sys

import pytest

from llmb import cli
from llmb.audit import namespace
from llmb.records import arrays, members
from llmb.submission import recompute_time, verify
from tests import attacks, builders
from tests.attacks import labour
from tests.builders import with_manifest

LARGE = [
    (labour, "MANY"),
    (arrays, "MAX_ELEMENTS"),
    (members, "_MAX_ENTRIES"),
    (namespace, "_MOST_PAIRS"),
    (recompute_time, "_MOST_BLOCKS"),
    (verify, "_MOST_LINES"),
]


@pytest.fixture(autouse=True)
def a_twentieth_of_what_is_large(monkeypatch):
    for module, name in LARGE:
        monkeypatch.setattr(module, name, getattr(module, name) // 20)


@pytest.fixture(scope="module")
def honest():
    return attacks.honest_run()


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        """Return exit code, stdout and stderr of ``llmb`` in this process."""
        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(sys, "argv", ["llmb", *map(str, arguments)])
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            signal.signal(signal.SIGTERM, before)
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


def tree(folder):
    """Return everything below ``folder``, as far as it can be named; nothing is followed."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_is_refused_in_one_line_and_writes_nothing(
    name, honest, call, tmp_path, monkeypatch
):
    attack = attacks.ATTACKS[name]
    where, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    where.mkdir()
    elsewhere.mkdir()
    path = attack.make(where, honest)
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.chdir(elsewhere)
    before = tree(tmp_path)
    code, out, err = call("verify", path)
    assert code == attack.code, err
    assert re.search(attack.reason, out + err), err
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("llmb: ")
    assert lines[0].isprintable()
    assert len(lines[0]) < 6000
    assert tree(tmp_path) == before, "something was written"


def test_the_table_holds_at_least_60_attacks_on_the_reader():
    assert len(attacks.ATTACKS) >= 60


def test_the_bundle_that_every_attack_starts_from_is_sound(honest, call, tmp_path):
    path = builders.write(tmp_path / "bundle", with_manifest(honest))
    code, out, _ = call("verify", path)
    assert code is None, out
