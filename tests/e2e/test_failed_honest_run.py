"""A run whose honest run fails halfway: the files that it left are removed."""

from __future__ import annotations

from pathlib import Path

from llmb.records import audited, members
from llmb.records.bundle import from_files, parse_record
from llmb.submission import layout, rejudge
from tests.builders import with_manifest
from tests.e2e.harness import run_plugin

#: The honest run ends when it writes which callables were replaced: its passes are written by then.
ENDS_LATE = """
import os, sys

def end(event, arguments):
    if event == "open" and str(arguments[0]).endswith("honest-namespace.json"):
        os._exit(9)

@hookimpl
def llmb_set_environment():
    if hasattr(sys.modules["__main__"], "honest_passes"):
        sys.addaudithook(end)
"""


def test_judges_of_its_bundle_find_the_verdict_of_the_run(tmp_path: Path) -> None:
    done = run_plugin(tmp_path, ENDS_LATE)
    assert done.record["audit"]["verdict"] == "UNVERIFIED", done.stderr
    left = {path.name for path in (done.directory / "evidence/repeat-0").iterdir()}
    assert not left & audited.BY_HONEST_RUN
    assert "removed honest.safetensors" in (done.directory / "log.txt").read_text()
    files = with_manifest(dict(members.read_folder(done.directory, layout.is_known)))
    record = parse_record(files["record.json"], "record.json")
    assert rejudge.judge(from_files(files), record).audit == record.audit
