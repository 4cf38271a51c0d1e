"""A run with a third party's seed: recorded, shown, repeatable, and told to no vendor code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests import builders
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended

SEED = 5_647_382_910_123_456_789
DOCUMENT = builders.seed_commitment(SEED, "5a17" * 8)

#: Writes down what a process that loads the plugin is sent: the order it has had, every line after.
WIRETAP = """
import gc
from llmb.wire import messages

with open(os.environ["WIRETAP"], "a") as file:
    print(*sys.orig_argv, file=file)

decode = messages.decode
def tapped(line):
    with open(os.environ["WIRETAP"], "ab") as file:
        file.write(line + b"\\n")
    return decode(line)
messages.decode = tapped

@hookimpl
def llmb_options():
    orders = [o for o in gc.get_objects() if type(o).__name__ == "OfferOrder"]
    with open(os.environ["WIRETAP"], "a") as file:
        file.writelines(order.model_dump_json() + "\\n" for order in orders)
    return []
"""


@pytest.fixture(scope="session")
def committed_run(once: Once) -> Ended:
    """A tiny run with the document from a file, of a plugin that listens."""

    def make(folder: Path) -> Ended:
        path = folder / "seed.json"
        path.write_text(json.dumps(DOCUMENT))
        flag = f"--seed-commitment={path}"
        # Unaudited: listening replaces a function of llmb, and rule N1 would say so.
        tap = str(folder / "tap")
        return harness.run_plugin(folder, WIRETAP, flag, harness.UNAUDITED, WIRETAP=tap)

    return once("committed-run", make)


def test_the_run_uses_the_seed_and_its_record_holds_the_whole_document(
    committed_run: Ended,
) -> None:
    assert committed_run.code == 0, committed_run.stderr
    assert committed_run.record["config"]["seed"] == SEED
    assert committed_run.record["seed_commitment"] == DOCUMENT


def test_the_summary_says_who_committed_to_the_seed(committed_run: Ended) -> None:
    (row,) = [line for line in committed_run.stdout.splitlines() if line.startswith("seed ")]
    assert "committed to by A [conference]" in row


def test_no_process_with_vendor_code_is_sent_seed_or_salt(committed_run: Ended) -> None:
    heard = (committed_run.output.parent / "tap").read_text()
    assert "llmb.processes.offer" in heard
    assert "llmb.processes.worker" in heard
    assert '"kind":"probe"' in heard, "the order of the probe was seen"
    assert '"kind":"step"' in heard, "the stream of the worker was seen"
    assert str(SEED) not in heard
    assert DOCUMENT["salt"] not in heard
    assert DOCUMENT["commitment"] not in heard


def test_the_shown_command_gives_the_same_run_without_the_file(
    committed_run: Ended, tmp_path: Path
) -> None:
    words = shlex.split(harness.call("show", committed_run.directory, "--command").stdout)
    plugins = [committed_run.output.parent / "plugins"]
    again = harness.run(
        tmp_path / "out", *words[2:], plugins=plugins, WIRETAP=str(tmp_path / "tap")
    )
    assert again.code == 0, again.stderr
    assert again.record["config"] == committed_run.record["config"]
    assert again.record["seed_commitment"] is None
    first, second = (done.evidence("weights.json")["pristine"] for done in (again, committed_run))
    assert first == second
    assert str(SEED) not in (tmp_path / "tap").read_text()


def test_a_commitment_alone_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    hidden = {n: value for n, value in DOCUMENT.items() if n not in ("seed", "salt")}
    path.write_text(json.dumps(hidden))
    done = harness.run(tmp_path / "out", "--preset=debug", f"--seed-commitment={path}")
    assert (done.code, len(done.said), done.stdout) == (2, 1, "")
    assert "not revealed yet" in done.said[0]
    assert not (tmp_path / "out").exists()
