"""Rule N2: no foreign thread, process, library, hook or tracer in the worker.

The module ``companions`` judges the time during the stream; this module judges the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from llmb.audit import companions
from llmb.audit.bench import Bench
from llmb.audit.rule import Evidence, Rule
from llmb.records import evidence
from llmb.records.evidence import Presence, SurroundingsEvidence
from llmb.records.finding import JUDGED_SINCE, Finding, Level, Status
from llmb.records.printable import few
from llmb.records.run_record import DeclaredHelper, RepeatTiming

#: Origins that may start threads and processes, or install hooks: torch and the vendor's library.
_EXPLAINED = {"needed", "library", "python"}
#: Origins of native libraries that a variable of the plugin may preload.
_KNOWN_PRELOADS = {*_EXPLAINED, "system"}
#: Origins of explained native libraries. The plugin's own are listed as closed components.
_KNOWN_LIBRARIES = {*_KNOWN_PRELOADS, "llmb", "plugin", "compiler"}
_PRELOADS = {"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"}
#: Variables that let other code run before any code of llmb: Python's, except for switches and
#: sizes, and those that name libraries for OpenSSL and glibc to load. Examples:
#: ``PYTHONWARNINGS=ignore::acme.Warned`` imports ``acme``, and ``PYTHONPYCACHEPREFIX`` names a
#: folder that may have other byte code of llmb. LD_LIBRARY_PATH is not listed: oneAPI and ROCm
#: need the variable.
_PYTHONS = "PYTHON"
_HARMLESS = {
    *("PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONMALLOC"),
    *("PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONUTF8"),
    *("PYTHON_GIL", "PYTHON_JIT"),
}
_LOADERS = {"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GCONV_PATH"}
_few = partial(few, most=3, between="; ")
#: What to do about libraries, about libraries loaded before all others, and about processes.
_LIBRARY_HINT = (
    "Install a library below /usr or /opt or as a package that the plugin requires, or declare its "
    "path in llmb_native_libraries"
)
_PRELOAD_HINT = (
    "Unset the variable, such as LD_PRELOAD. The plugin's llmb_environment_variables may return "
    "LD_PRELOAD with the full path of a library below /usr or /opt, or of a package that the "
    "plugin requires"
)
_PROCESS_HINT = (
    "No process may run beside the steps: end the process before the first step, take a thread "
    "that llmb_helpers declares, or run the program in llmb_telemetry"
)
_START_HINT = (
    "No package may bring sitecustomize.py, usercustomize.py or a .pth file with a line of code: "
    "run the code when the plugin is imported"
)
_UNDECLARED = ", which llmb_helpers does not declare with a reason and its share of CPU time"


SURROUNDINGS = Evidence(evidence.SURROUNDINGS, SurroundingsEvidence.model_validate_json)
N2 = Rule(
    "N2",
    Level.FLAG,
    "no foreign threads, children, libraries or import hooks",
    measured="threads, processes, libraries, import hooks and tracers that came after the plugin; "
    "in the timed steps each fork, process, thread, tracer, use of ctypes and read of a process's "
    "memory by plugin code; at any time its audit hooks, and its reads of frames or of the garbage "
    "collector's objects (rules 3: in the timed steps); CPU time of helper threads and of children",
    limit="only threads and libraries of torch, of the plugin and of the system (below /usr or "
    "/opt), libraries declared by llmb_native_libraries, and libraries of the system that the "
    "plugin's LD_PRELOAD names by their full path; threads declared by llmb_helpers, each within "
    "its share of CPU time (5 % of a core or less)",
    cannot_see="a system library replaced before the run; threads and tracers of native code",
    evidence=(SURROUNDINGS,),
    causes=(
        "a thread of the plugin for telemetry or compiling, which llmb_helpers does not declare, "
        "or a child process beside the steps, which no hook can declare",
        "a debugger, profiler or monitoring agent that attaches to every Python process",
    ),
)
RULES = (N2,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield N2."""
    path = bench.path(SURROUNDINGS)
    facts = bench.facts
    yield finding(
        bench.needed(SURROUNDINGS),
        facts.variables,
        path,
        bench.timing,
        facts.helpers,
        ever_looked=int(facts.rules_version) >= JUDGED_SINCE,
    )


def finding(
    evidence: SurroundingsEvidence,
    variables: Collection[str],
    path: str,
    timing: RepeatTiming,
    helpers: Sequence[DeclaredHelper] = (),
    *,
    ever_looked: bool = False,
) -> Finding:
    """Return N2 for one worker's evidence file ``path``.

    ``variables`` are the names returned by the plugin's ``llmb_environment_variables``, such as
    ``LD_PRELOAD``; ``helpers`` are the declared threads. For ``ever_looked`` see
    ``companions.faults``.
    """
    strange = [
        presence
        for presence in evidence.found
        if not (_is_explained(presence) or _is_thread_of(presence, evidence, helpers))
    ]
    faults = [f"{_said(one)}{_UNDECLARED if one.kind == 'thread' else ''}" for one in strange]
    kinds = {one.kind for one in strange}
    hints = [_LIBRARY_HINT] if "library" in kinds else []
    hints += [_PROCESS_HINT] if "process" in kinds else []
    faults += companions.faults(evidence, timing, helpers, ever_looked=ever_looked)
    declared = bool(_PRELOADS & {*variables})
    by = "the plugin" if declared else "no variable of the plugin's"
    preloads = [p for p in evidence.preloaded if not declared or p.origin not in _KNOWN_PRELOADS]
    faults += [f"{_said(presence)} put before all others by {by}" for presence in preloads]
    hints += [_PRELOAD_HINT] if preloads else []
    faults += [f"{_said(one)}, which runs in every Python process" for one in evidence.at_start]
    hints += [_START_HINT] if evidence.at_start else []
    early = sorted({*filter(_runs_before_llmb, variables)})
    faults += [f"{name} set by the plugin" for name in early]
    return N2.finding(
        Status.FLAG if faults else Status.PASS,
        ". ".join((_few(faults), *hints)) if faults else _notes(evidence, timing),
        measured=_counts(evidence),
        honest="torch's, the plugin's libraries' and the system's only",
        evidence=(path,),
    )


def _runs_before_llmb(variable: str) -> bool:
    return variable in _LOADERS or (variable.startswith(_PYTHONS) and variable not in _HARMLESS)


def _is_explained(presence: Presence) -> bool:
    known = _KNOWN_LIBRARIES if presence.kind == "library" else _EXPLAINED
    return presence.origin in known


def _is_thread_of(
    presence: Presence, evidence: SurroundingsEvidence, helpers: Sequence[DeclaredHelper]
) -> bool:
    """Tell whether ``presence`` is a thread that ``companions`` judges."""
    name = presence.name.rpartition(" in ")[0]
    met = any(thread.name == name for thread in evidence.threads)
    return presence.kind == "thread" and (met or companions.is_declared(name, helpers))


def _said(presence: Presence) -> str:
    known = {"plugin": "the plugin", "system": "the system"}
    whose = presence.distribution or known.get(presence.origin, "unknown origin")
    return f"{presence.kind} {presence.name} of {whose}"


def _counts(evidence: SurroundingsEvidence) -> str:
    kinds = [presence.kind for presence in evidence.found]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    if evidence.native_threads is not None:
        before, after = evidence.native_threads
        counts.append(f"{after - before} native threads")
    return f"new: {', '.join(counts)}" if counts else "nothing new"


def _notes(evidence: SurroundingsEvidence, timing: RepeatTiming) -> str:
    notes = [*companions.notes(evidence, timing)]
    if evidence.preloaded:
        names = _few(presence.name for presence in evidence.preloaded)
        notes.append(f"the plugin has {names} loaded before all others")
    before, after = evidence.frozen_objects
    if after > before:
        notes.append(f"{after - before} objects more were frozen for Python's collector")
    if evidence.collecting == (True, False):
        notes.append("Python's collector was switched off")
    return _few(notes) or "what came is torch's, the plugin's libraries' and the system's"
