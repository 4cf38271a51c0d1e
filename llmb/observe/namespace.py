"""What of torch, llmb and Python's clocks is not what it was, and whose code stands there (N1).

The worker watches itself. What a vendor's library alone does by being imported is told apart in a
process of its own, which holds the library and not the plugin (``library_baseline``).
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

from llmb.observe.callables import Callables, functions, no_collection
from llmb.observe.dispatcher import KernelChange, Kernels
from llmb.observe.origins import CodeOrigin, Origins
from llmb.plugin.discovery import version_of
from llmb.records.evidence import Library, LibraryBaseline, NamespaceEvidence, Replacement
from llmb.records.redact import redact_paths, redact_text

#: Code of theirs may stand in a module of torch that was never seen without it.
_AT_HOME = {"python", "llmb", "needed"}
#: What a watch consists of; each may import those before it.
_WATCHING = (
    "llmb.observe.callables",
    "llmb.observe.dispatcher",
    "llmb.observe.origins",
    "llmb.observe.namespace",
)
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LONGEST = 500  # characters of a name


#: A watch that has looked already, in the process this one is forked from.
_ready: list[NamespaceWatch] = []


def prepare() -> None:
    """Let a watch look now, for processes that are forked from this one: they load plugins."""
    _ready[:] = [_new_watch()]


def unreachable_watch(*, anew: bool = False) -> NamespaceWatch:
    """Return a watch made of code of its own: who replaces parts of this module does not blind it.

    To be called before any code of the plugin is loaded. ``anew``: this process has changed torch
    on purpose since it was forked.
    """
    ready = _ready.pop() if _ready else None  # nobody finds it here any more
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
    """Torch and llmb before any code of the plugin, to be compared with what they became."""

    def __init__(self) -> None:
        """Look (0.3 s), after torch has done to itself what it does when it is first used."""
        with no_collection():
            settle()
        self._before = Callables(), Kernels()
        self._after: tuple[Callables, Kernels] | None = None

    def go_on(self) -> None:
        """Go on in a process that was forked from the one that has looked."""
        self._before[0].go_on()

    def close(self) -> None:
        """Look again: what is found now is judged, whatever is put back later."""
        self._after = Callables(self._before[0]), Kernels()

    def evidence(self, module: str, distribution: str) -> NamespaceEvidence:
        """Return what changed until ``close`` was called, or until now.

        ``module`` and ``distribution`` are the plugin's.
        """
        if self._after is None:
            self.close()
        assert self._after is not None
        (before, kernels), (after, kernels_after) = self._before, self._after
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
            ),
            device_kernels=sum(change.supports_a_device for change in changes),
            libraries=tuple(_libraries(origins)),
        )


def library_baseline(modules: Sequence[str], module: str, distribution: str) -> LibraryBaseline:
    """Return what importing ``modules`` replaces, in a process that has not loaded the plugin.

    ``modules`` are those of the ``libraries`` a worker wrote down, in the order they stand there;
    ``module`` and ``distribution`` are the plugin's, which is not imported.
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
    """Let torch do to itself what it does when a thing is first used.

    The first optimizer of a class wraps the class's ``step``, the first compilation the functions
    that are not compiled into, the first ``vmap`` registers kernels: compared with a torch that has
    not done so yet, every honest run would have replaced them.
    """
    # The harness's own first: it inherits from another, and would else inherit what that one wraps.
    for kind in (AdamW, *vars(torch.optim).values()):
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            with suppress(Exception):  # some cannot be made without more arguments
                kind([nn.Parameter(torch.zeros(1, 1))])  # type: ignore[call-arg]
    with suppress(Exception):
        torch.vmap(torch.sin)(torch.ones(1))
    try:
        from torch._dynamo.eval_frame import TorchPatcher
        from torch._dynamo.mutation_guard import install_generation_tagging_init

        TorchPatcher.patch()
        install_generation_tagging_init()
    except Exception:  # another torch, where the way to the same is to compile (half a second)
        with suppress(Exception):  # not every Python and platform can
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


def _replaced(before: Callables, after: Callables, origins: Origins) -> Iterator[Replacement]:
    for name in before.replaced(after):
        value = after.value(name)
        yield _callable(
            name, value, origins, same=value is not None and before.value(name) is value
        )


def _foreign(before: Callables, after: Callables, origins: Origins) -> Iterator[Replacement]:
    """Yield code of others in what was there before the plugin, or has come since.

    Of both nobody has seen the original: a module of torch may be changed as soon as it is loaded,
    and what starts with Python, or with torch, may have changed it before.
    """
    is_at_home = cache(partial(_is_at_home, origins))
    there, since = (
        before.written_elsewhere(is_at_home),
        after.written_elsewhere(is_at_home, before),
    )
    for name, value, file in chain(there, since):
        place = origins.of(file)
        # A module may import a function of any installed package; a class of torch has none.
        if place.origin == "other" and not after.is_member(name):
            continue
        yield _callable(name, value, origins).model_copy(update={"kind": "foreign"})


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
    # Nearly all are torch's; what has no file was generated, as dataclasses are.
    return file.startswith(_TORCH) or file[:1] != "/" or origins.of(file).origin in _AT_HOME


def _kernel(change: KernelChange, origins: Origins, owner: str | None = None) -> Replacement:
    file = change.place
    place = origins.of(file) if file and Path(file).is_file() else CodeOrigin("unknown", None, "")
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
        # A package knows in which order its own parts are to be imported.
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
    """Return whose ``value`` is; of a function wrapped by torch's own, whose the inner one is."""
    places = [origins.of(function.__code__.co_filename) for function in functions(value)]
    strange = [place for place in places if place.origin not in _AT_HOME]
    if places:
        return (strange or places)[0]
    if value is None:
        return CodeOrigin("unknown", None, "")
    return origins.of_module(_module_of(value).partition(".")[0])


def _module_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None) or type(value).__module__
    return module if isinstance(module, str) else ""


def _described(value: object) -> str | None:
    """Return module and name of what ``value`` is; None if there is nothing any more."""
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
    """Add what ``code`` does: neither its file nor its lines, which differ between machines."""
    found.update(code.co_code)
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    found.update(repr(_simple(code.co_consts)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add(found, constant)


def _simple(values: Iterable[object]) -> list[object]:
    """Return those of ``values`` that are written alike in every process."""
    found: list[object] = []
    for value in values:
        if isinstance(value, frozenset):
            found.append(sorted(map(repr, value)))
        elif value is None or isinstance(value, (bool, int, float, str, bytes, tuple)):
            found.append(_simple(value) if isinstance(value, tuple) else value)
    return found
