"""Rule N1: only the vendor's library or a declared patch replaced callables of torch or llmb.

A library may replace functions when the plugin imports the library. A process that loads the
library without the plugin confirms such replacements, which become a note. Every other replacement
must be declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from llmb.audit.bench import Bench
from llmb.audit.rule import Evidence, Rule
from llmb.records import audited, evidence
from llmb.records.evidence import (
    Library,
    LibraryBaseline,
    NamespaceEvidence,
    Replacement,
    Stranger,
)
from llmb.records.finding import Finding, Level, Status
from llmb.records.printable import few
from llmb.records.run_record import DeclaredPatch

#: Packages that no library and no declaration may replace (docs/plugins.md): optimizer, harness,
#: Python itself and Python's clock.
_NOBODYS = ("torch.optim", "llmb", "builtins", "time")
#: Package and name of torch's only class that may stand in for a plain tensor. Other classes of
#: torch call functions of a plugin. Example: ``SparseSemiStructuredTensor`` has a table of them.
_SHARDED = "torch", "torch.distributed.tensor.DTensor"
_TENSORS = ("parameter", "gradient", "moment of a parameter", "result of the model")
#: The package whose classes parameters may have, for FP8 among ranks.
_OF_FORMATS = "torchao"
_few = partial(few, most=3, between="; ")
#: What an honest plugin does instead, by kind of the unexpected object.
_ADVICE = {
    "signal handler": ": leave it out, or use faulthandler.register, which needs none",
    "callback of the garbage collector": ": leave it out, or remove it before the first step",
    "hook of all modules": ": register it with the model's own modules",
    "hook of the optimizer": ": leave it out, torch's optimizer steps alone",
    "parameter": ": store a plain torch.nn.Parameter, and further attributes on the module",
    "gradient": ": a hook or function of the backward pass may return a plain torch.Tensor only",
    "moment of a parameter": ": leave the state of torch's optimizer to torch",
    "mode of torch": ": leave it before the model's call returns",
    "tracer": ": leave it out",
    "what the pause of a step calls": ": do not replace the function, llmb reads gradients with it",
    "torch's state of the thread": ": leave the guard before the model's call returns",
}
#: Of strangers that no name tells: the beginning of the name, and the advice.
_ADVICE_OF_ALL = {
    "wrapped ": ": torch passes each read to other code: hand over a tensor of torch's own",
    "attribute ": ": give the attribute a name that tensors have not, or keep it on the module",
    "key of ": ": keys are plain strings",
}
#: Limit of replacements times declarations; 500 of each are more than any library or plugin has.
_MOST_PAIRS = 250_000


NAMESPACE = Evidence(evidence.NAMESPACE, NamespaceEvidence.model_validate_json)
HONEST_NAMESPACE = Evidence(audited.HONEST_NAMESPACE, NamespaceEvidence.model_validate_json)
LIBRARY = Evidence(evidence.LIBRARY, LibraryBaseline.model_validate_json)
N1 = Rule(
    "N1",
    Level.BLOCK,
    "no callable of torch or llmb was replaced undeclared, and objects have torch's own types",
    measured="every callable and operator, compared with the state before the plugin was loaded, "
    "in worker and honest run; in each pause and after each optimizer step the exact types and "
    "dispatch keys of result, parameters, gradients and optimizer state, their own attributes, the "
    "types of the optimizer, its lists, tables and keys, and hooks, modes, tracers and handlers; "
    "in each pause, right before the reading, all functions, objects and kernels that llmb reads a "
    "step with, and the file of the channel",
    limit="none replaced; replacements by a library's import are named, declared patches are "
    "flagged; types are torch's own (among ranks DTensor, with local parts of torch's own type; "
    "parameters may have classes of torchao), without an attribute named as one of their methods; "
    "no callback, mode or hook of all modules",
    cannot_see="native code that patches machine code; code that reads or writes the memory of the "
    "process, for example through torch._C._construct_storage_from_data_pointer; code of a plugin "
    "in the module of a library, if the import of the library replaces a function that llmb reads "
    "with, such as torch.Tensor.to; functions that a plugin registers with a class of torchao; "
    "Python's frames, if logging or torch reads a frame for the plugin",
    evidence=(NAMESPACE, HONEST_NAMESPACE),
    any_evidence=True,
    causes=(
        "a library that replaces functions of torch when it is imported, and that "
        "llmb_patches does not declare",
        "a profiler, tracer or hook of a debugging session that was left on",
    ),
)
RULES = (N1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield N1 of worker and honest run; if either file is missing, only a failure counts."""
    baseline = bench.read(LIBRARY)
    library = bench.path(LIBRARY) if baseline is not None else None
    shown = [(file, bench.read(file)) for file in (NAMESPACE, HONEST_NAMESPACE)]
    both = all(seen is not None for _, seen in shown)
    for file, seen in shown:
        if seen is None:
            continue
        found = finding(seen, baseline, bench.facts.patches, bench.path(file), library)
        if both or found.status is Status.FAIL:
            yield found


def finding(
    evidence: NamespaceEvidence,
    baseline: LibraryBaseline | None,
    declared: Sequence[DeclaredPatch],
    path: str,
    baseline_path: str | None = None,
) -> Finding:
    """Return N1 for one worker's evidence file ``path``.

    ``baseline`` is None where no process loaded the library alone: the library's own replacements
    are then unknown.

    Raises:
        ValueError: too many replacements and declarations to compare.
    """
    if len(evidence.replaced) * len(declared) > _MOST_PAIRS:
        raise ValueError(f"{len(evidence.replaced)} replacements and {len(declared)} declarations")
    sorted_out = _SortedOut(evidence, baseline, declared)
    status, message = sorted_out.outcome()
    return N1.finding(
        status,
        message,
        measured=f"{len(evidence.replaced)} replaced of {evidence.callables} callables and "
        f"{evidence.operators} operators, {len(sorted_out.by_library)} of them by a library",
        honest="none, but by importing a library",
        evidence=(path,) if baseline_path is None else (path, baseline_path),
    )


class _SortedOut:
    """Replacements of one worker, grouped by the justification of each."""

    def __init__(
        self,
        evidence: NamespaceEvidence,
        baseline: LibraryBaseline | None,
        declared: Sequence[DeclaredPatch],
    ) -> None:
        self._libraries = evidence.libraries
        self.strangers = [s for s in evidence.strangers if not _is_known(s)]
        self.known = [s for s in evidence.strangers if _is_known(s)]
        self._confirmed = {_key(r): r for r in baseline.replaced} if baseline else {}
        self.by_library: list[Replacement] = []
        self.declared: list[str] = []
        self._of_declared: list[Replacement] = []
        self.not_known: list[Replacement] = []
        self.undeclared: list[Replacement] = []
        self.forbidden: list[Replacement] = []
        for replacement in evidence.replaced:
            reason = _reason(replacement, declared)
            if _was_there_unseen(replacement):
                self.by_library.append(replacement)
            elif _is_in(replacement.name, *_NOBODYS):
                self.forbidden.append(replacement)
            elif _key(replacement) in self._confirmed:
                self.by_library.append(self._confirmed[_key(replacement)])
            elif reason is not None:
                self._of_declared.append(replacement)
                self.declared.append(f"{_said(replacement)}, declared as {reason!r}")
            elif baseline is None and self._may_be_a_librarys(replacement):
                self.not_known.append(replacement)
            else:
                self.undeclared.append(replacement)

    def _may_be_a_librarys(self, replacement: Replacement) -> bool:
        native = replacement.kind == "kernel" and replacement.origin == "unknown"
        return replacement.origin == "library" or (native and bool(self._libraries))

    def outcome(self) -> tuple[Status, str]:
        """Return the status, and a sentence that names the worst replacements."""
        if self.strangers:
            names = _few(map(_advised, self.strangers))
            return Status.FAIL, f"a step was not what it seems: {names}"
        if self.forbidden:
            return Status.FAIL, f"replaced, as nothing permits: {_few(map(_said, self.forbidden))}"
        if self.undeclared:
            names = _few(map(_said, self.undeclared))
            return Status.FAIL, f"replaced and not declared: {names}{self._of_others()}"
        if self.not_known:
            names = _few(map(_said, self.not_known))
            return Status.NOT_OBSERVED, f"what importing the library replaces is not known: {names}"
        if self.declared:
            return Status.FLAG, f"replaced: {_few(self.declared)}{self._of_others()}"
        if self.by_library:
            names = _few(r.name for r in self.by_library)
            return Status.PASS, f"{self._named_libraries()} replaces {names}"
        if self.known:
            return Status.PASS, f"beside torch's own: {_few(map(_met, self.known))}"
        return Status.PASS, "torch and llmb are what they were before the plugin was loaded"

    def _of_others(self) -> str:
        """Return the advice on packages that replace names and that the plugin does not require."""
        replaced = [*self.undeclared, *self._of_declared]
        names = {r.distribution for r in replaced if r.origin == "other" and r.distribution}
        if not names:
            return ""
        listed = " and ".join(sorted(names))
        return f". If {listed} belongs to the plugin, require the package in the plugin's metadata"

    def _named_libraries(self) -> str:
        owners = {r.distribution for r in self.by_library}
        known = [lib for lib in self._libraries if lib.distribution in owners]
        return " and ".join(map(_library, known)) or "a library of the plugin"


def _was_there_unseen(replacement: Replacement) -> bool:
    """Tell whether a library's code stands where no earlier code was seen: possibly only added.

    Examples: a module of torch that came with the library, or a place where torch itself loads the
    library.
    """
    return replacement.kind == "foreign" and replacement.origin == "library"


def _library(library: Library) -> str:
    digest = f", sha256 {library.sha256[:12]}" if library.sha256 else ""
    return f"{library.distribution} ({library.version or 'no version'}{digest})"


def _key(r: Replacement) -> tuple[str | None, ...]:
    return r.name, r.kind, r.dispatch_key, r.place, r.sha256


def _reason(replacement: Replacement, declared: Sequence[DeclaredPatch]) -> str | None:
    """Return the plugin's declared reason; None: not declared."""
    fits = (patch for patch in declared if fnmatchcase(replacement.name, patch.target))
    return next((patch.reason for patch in fits), None)


def _is_in(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _said(r: Replacement) -> str:
    where = f" on {r.dispatch_key}" if r.dispatch_key else ""
    whose = r.distribution or {"llmb": "llmb", "plugin": "the plugin"}.get(r.origin)
    what = " of ".join(filter(None, (r.place, whose)))
    return f"{r.name}{where} by {what}" if what else f"{r.name}{where}"


def _is_known(stranger: Stranger) -> bool:
    """Tell whether a class of torch stands in for tensors, or one of torchao for parameters.

    A callback is never known: objects of Python and torch call any function of a plugin. Examples:
    ``functools.partial``, ``threading.Thread.run``.
    """
    if stranger.what == "parameter" and stranger.distribution == _OF_FORMATS:
        return True
    is_sharded = (stranger.distribution, stranger.type) == _SHARDED
    return is_sharded and stranger.what in _TENSORS


def _met(stranger: Stranger) -> str:
    whose = stranger.distribution or {"plugin": "the plugin"}.get(stranger.origin, "unknown origin")
    first = f"from step {stranger.first_step} on, {stranger.looks} times"
    return f"{stranger.what}: {stranger.type} of {whose} ({first})"


def _advised(stranger: Stranger) -> str:
    usual = (told for name, told in _ADVICE_OF_ALL.items() if stranger.what.startswith(name))
    return f"{_met(stranger)}{_ADVICE.get(stranger.what) or next(usual, '')}"
