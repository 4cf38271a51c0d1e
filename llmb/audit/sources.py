"""Rule S1: the recorded plugin files are the loaded files; the reference is pinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llmb.audit.bench import Bench
from llmb.audit.rule import Evidence, Rule
from llmb.records import evidence
from llmb.records.evidence import PluginEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import FileDigest

PLUGIN = Evidence(evidence.PLUGIN, PluginEvidence.model_validate_json)
S1 = Rule(
    "S1",
    Level.BLOCK,
    "the code that ran is the code that is shown",
    measured="digests of plugin sources and reference; the byte code of every plugin file, as it "
    "was run, against what its text compiles to",
    cannot_see="code made at run time from strings; native libraries, which are listed as closed "
    "components",
    observer="supervisor",
    evidence=(PLUGIN,),
    causes=(
        "a file of the plugin that was edited, or checked out anew, while the run was being made",
        "code that the plugin generates when it is installed or imported, so that no file shows it",
    ),
)
RULES = (S1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield S1."""
    facts = bench.facts
    yield finding(bench.needed(PLUGIN), facts.shown, facts.reference, facts.pinned)


def finding(
    evidence: PluginEvidence,
    shown: Sequence[FileDigest],
    reference: Mapping[str, str],
    pinned: Mapping[str, str],
) -> Finding:
    """Return S1 from the worker's loaded files, the files ``shown``, and the reference.

    ``reference`` and ``pinned`` map a file of the reference to the sha256, on disk and in PINS.
    """
    loaded = evidence.files
    changed = {f.path for f in loaded} ^ {f.path for f in shown}
    by_path = {f.path: f.sha256 for f in shown}
    changed |= {f.path for f in loaded if by_path.get(f.path) != f.sha256}
    faults = [f"plugin file {path} is not the one that was loaded" for path in sorted(changed)]
    faults += [
        f"plugin file {path} is not the code that was run, or was run before llmb"
        for path in evidence.run_otherwise
    ]
    if not loaded:
        faults.append("no file of the plugin was seen loaded")
    unpinned = {name for name in {*reference, *pinned} if reference.get(name) != pinned.get(name)}
    faults += [f"reference/{name} is not the pinned file" for name in sorted(unpinned)]
    return S1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults[:3]) if faults else "plugin sources and reference are as shown",
        measured=f"{len(loaded)} plugin files, and the reference",
        honest="every digest equal",
    )
