"""Find changes to torch, llmb and Python's clocks, and the owner of the new code (rule N1).

The worker watches its own process. A vendor library may replace functions merely by being imported.
``library_baseline`` finds such replacements in a separate process with the library but without the
plugin.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec, module_from_spec
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

import llmb
from llmb.observe import executed_code
from llmb.observe.callables import Callables, functions, no_collection
from llmb.observe.dispatcher import KernelChange, Kernels
from llmb.observe.origins import UNKNOWN, CodeOrigin, Origins
from llmb.plugin.discovery import version_of
from llmb.records.evidence import Library, LibraryBaseline, NamespaceEvidence, Replacement
from llmb.records.redact import redact_paths, redact_text

#: Origins allowed in a module of torch, even without an earlier snapshot of the module.
_AT_HOME = {"python", "llmb", "needed"}
#: The modules that make up a watch; each module may import the modules before.
_WATCHING = (
    "llmb.observe.callables",
    "llmb.observe.dispatcher",
    "llmb.observe.recorded_files",
    "llmb.observe.origins",
    "llmb.observe.namespace",
)
_LLMB = Path(llmb.__file__).resolve().parent
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LONGEST = 500  # characters of a name


#: A watch with a snapshot already taken, by the process that forked this process.
_ready: list[NamespaceWatch] = []


def prepare() -> None:
    """Take a snapshot now, for processes forked from this process to load plugins."""
    _ready[:] = [_new_watch()]


def unreachable_watch(*, anew: bool = False) -> NamespaceWatch:
    """Return a watch with private copies of the code: patching this module does not blind a watch.

    Call this function before any code of the plugin is loaded. ``anew``: take a new snapshot,
    because this process has changed torch on purpose since the fork.
    """
    ready = _ready.pop() if _ready else None  # removed: plugin code cannot find the watch here
    if ready is None or anew:
        return _new_watch()
    ready.go_on()
    return ready


def _new_watch() -> NamespaceWatch:
    shared = {name: sys.modules[name] for name in _WATCHING}
    try:
        for name in _WATCHING:
            spec = find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        copy: Any = sys.modules[__name__]
    finally:
        sys.modules.update(shared)
    watch: NamespaceWatch = copy.NamespaceWatch()
    return watch


class NamespaceWatch:
    """Snapshot of torch and llmb before any plugin code, to compare with the state at the end."""

    def __init__(self) -> None:
        """Take the snapshot (0.3 s), after triggering torch's first-use changes (``settle``)."""
        with no_collection():
            settle()
        self._before = Callables(), Kernels()
        self._after: tuple[Callables, Kernels] | None = None

    def go_on(self) -> None:
        """Continue in a process forked from the process of the snapshot."""
        self._before[0].go_on()

    def close(self) -> None:
        """Take the second snapshot: changes found now are judged, even if undone later."""
        self._after = Callables(self._before[0]), Kernels()

    def _closed(self) -> tuple[Callables, Kernels]:
        if self._after is None:
            self.close()
        assert self._after is not None
        return self._after

    def stands(self, name: str, value: object, code: object) -> bool:
        """Tell whether ``name`` had another value before, and ``value`` with ``code`` at the end.

        ``evidence`` reports such a change. ``code`` is None for a value without Python code.
        """
        before, after = self._before[0], self._closed()[0]
        return before.value(name) is not value and after.holds(name, value, code)

    def evidence(self, module: str, distribution: str) -> NamespaceEvidence:
        """Return all changes until ``close`` was called, or until now.

        ``module`` and ``distribution`` name the plugin, such as ``vendor_x`` and ``vendor-x``.
        """
        (before, kernels), (after, kernels_after) = self._before, self._closed()
        origins = Origins(module, distribution)
        changes = kernels.changes(kernels_after)
        replaced = {r.name: r for r in _replaced(before, after, origins)}
        return NamespaceEvidence(
            callables=len(before),
            operators=len(kernels),
            replaced=(
                *replaced.values(),
                *(_kernel(c, origins) for c in changes if not c.supports_a_device),
                *(r for r in _foreign(before, after, origins) if r.name not in replaced),
                *map(_forged, executed_code.other_than_own(_LLMB)),
            ),
            device_kernels=sum(change.supports_a_device for change in changes),
            libraries=tuple(_libraries(origins)),
        )


def library_baseline(modules: Sequence[str], module: str, distribution: str) -> LibraryBaseline:
    """Return the replacements made by importing ``modules``, in a process without the plugin.

    ``modules`` are the modules of the ``libraries`` in a worker's evidence, in recorded order.
    ``module`` and ``distribution`` name the plugin, which is not imported.
    """
    with no_collection():
        settle()
    before, kernels = Callables(), Kernels()
    origins = Origins(module, distribution)
    imported, failed, native = [], {}, list[Replacement]()
    for name in modules:
        try:
            import_module(name)
            imported.append(name)
        except (Exception, SystemExit) as error:  # a vendor's import can fail in any way
            failed[name] = redact_text(f"{type(error).__name__}: {error}")[:_LONGEST]
        owner, now = origins.of_module(name).distribution, Kernels()
        native += (
            _kernel(c, origins, owner) for c in kernels.changes(now) if not c.supports_a_device
        )
        kernels = now
    return LibraryBaseline(
        imported=tuple(imported),
        failed=failed,
        replaced=(*_replaced(before, Callables(before), origins), *native),
    )


def settle() -> None:
    """Trigger the changes torch makes to its own functions on first use.

    Examples: the first optimizer of a class wraps the ``step`` of the class; the first compilation
    wraps functions excluded from compiling; the first ``vmap`` registers kernels. Without
    ``settle``, every honest run would seem to replace these functions.
    """
    # AdamW first: AdamW inherits from Adam, and would inherit Adam's wrapped ``step`` otherwise.
    for kind in (AdamW, *vars(torch.optim).values()):
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            with suppress(Exception):  # some optimizers need more arguments
                kind([nn.Parameter(torch.zeros(1, 1))])  # type: ignore[call-arg]
    with suppress(Exception):
        torch.vmap(torch.sin)(torch.ones(1))
    try:
        from torch._dynamo.eval_frame import TorchPatcher
        from torch._dynamo.mutation_guard import install_generation_tagging_init

        TorchPatcher.patch()
        install_generation_tagging_init()
    except Exception:  # another torch version: compile instead (half a second)
        with suppress(Exception):  # not every Python and platform can compile
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


def _replaced(before: Callables, after: Callables, origins: Origins) -> Iterator[Replacement]:
    for name in before.replaced(after):
        value = after.value(name)
        yield _callable(
            name, value, origins, same=value is not None and before.value(name) is value
        )


def _foreign(before: Callables, after: Callables, origins: Origins) -> Iterator[Replacement]:
    """Yield foreign code in modules loaded before the plugin, and in modules loaded since.

    No snapshot shows the original of either: a module of torch may be changed as soon as the module
    is loaded, and code that starts with Python or torch may have changed a module earlier.
    """
    is_at_home = cache(partial(_is_at_home, origins))
    there, since = (
        before.written_elsewhere(is_at_home),
        after.written_elsewhere(is_at_home, before),
    )
    for name, value, file in chain(there, since):
        place = origins.of(file)
        # A module may import functions of any installed package; a class of torch may not.
        if place.origin == "other" and not after.is_member(name):
            continue
        yield _callable(name, value, origins).model_copy(update={"kind": "foreign"})


def _forged(file: Path) -> Replacement:
    """Return the replacement of all code of llmb's ``file``. Example: by forged byte code."""
    return Replacement(
        name=".".join(file.relative_to(_LLMB.parent).with_suffix("").parts)[:_LONGEST],
        kind="foreign",
        origin="unknown",
        place="other code than the file",
    )


def _callable(name: str, value: object, origins: Origins, *, same: bool = False) -> Replacement:
    place, described = _whose(value, origins), _described(value)
    return Replacement(
        name=name[:_LONGEST],
        kind="callable",
        origin=place.origin,
        distribution=place.distribution,
        place=f"{described}, changed in place" if same else described,
        sha256=_digest(value),
    )


def _is_at_home(origins: Origins, file: str) -> bool:
    # Nearly all files are torch's. Code without a file is generated, such as dataclass methods.
    return file.startswith(_TORCH) or file[:1] != "/" or origins.of(file).origin in _AT_HOME


def _kernel(change: KernelChange, origins: Origins, owner: str | None = None) -> Replacement:
    file = change.place
    place = origins.of(file) if file and Path(file).is_file() else UNKNOWN
    return Replacement(
        name=change.name[:_LONGEST],
        kind="kernel",
        dispatch_key=change.dispatch_key,
        origin=place.origin,
        distribution=place.distribution or owner,
        place=place.name or (redact_paths(file) if file else None),
    )


def _libraries(origins: Origins) -> Iterator[Library]:
    modules: dict[str, list[str]] = {}
    if origins.libraries:
        for name in [name for name in sys.modules if "." not in name]:
            place = origins.of_module(name)
            if place.origin == "library" and place.distribution is not None:
                modules.setdefault(place.distribution, []).append(name)
    for owner, names in modules.items():
        # Import the package first: the package imports its parts in the right order.
        names.sort(key=lambda name: not hasattr(sys.modules[name], "__path__"))
        yield Library(
            distribution=owner,
            version=version_of(owner),
            sha256=_record_digest(owner),
            modules=tuple(names),
        )


def _record_digest(name: str) -> str | None:
    try:
        record = distribution(name).read_text("RECORD")
    except PackageNotFoundError:
        return None
    return None if record is None else hashlib.sha256(record.encode()).hexdigest()


def _whose(value: object, origins: Origins) -> CodeOrigin:
    """Return the origin of ``value``; a function wrapped by torch has the inner one's origin."""
    places = [origins.of(function.__code__.co_filename) for function in functions(value)]
    strange = [place for place in places if place.origin not in _AT_HOME]
    if places:
        return (strange or places)[0]
    if value is None:
        return UNKNOWN
    return origins.of_module(_module_of(value).partition(".")[0])


def _module_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None) or type(value).__module__
    return module if isinstance(module, str) else ""


def _described(value: object) -> str | None:
    """Return module and name of ``value`` (of a function or class); None if ``value`` is None."""
    if value is None:
        return None
    if isinstance(value, ModuleType):
        return redact_text(value.__name__)[:_LONGEST]
    function = next(functions(value), value)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return redact_text(f"{_module_of(function)}.{name}")[:_LONGEST]


def _digest(value: object) -> str | None:
    found = hashlib.sha256()
    made_of = list(functions(value))
    for function in made_of:
        _add(found, function.__code__)
        found.update(repr(_simple(_settings(function))).encode())
    return found.hexdigest() if made_of else None


def _settings(function: FunctionType) -> Iterable[object]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _add(found: hashlib._Hash, code: CodeType) -> None:
    """Hash the bytecode of ``code``, without file and line numbers: machines differ in both."""
    found.update(code.co_code)
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    found.update(repr(_simple(code.co_consts)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add(found, constant)


def _simple(values: Iterable[object]) -> list[object]:
    """Return the ``values`` with the same ``repr`` in every process."""
    found: list[object] = []
    for value in values:
        if isinstance(value, frozenset):
            found.append(sorted(map(repr, value)))
        elif value is None or isinstance(value, (bool, int, float, str, bytes, tuple)):
            found.append(_simple(value) if isinstance(value, tuple) else value)
    return found
