"""Which callables of torch, llmb, builtins and the clocks are still the ones they were.

Identity is compared, and of Python functions the code, the defaults and the functions they close
over, too. Kernels registered over torch's in its dispatcher are seen by ``observe.dispatcher``.
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import is_
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple

#: Top-level packages whose callables are looked at: what is trained with, what times it, and what
#: its evidence goes through.
_WATCHED = frozenset(
    (
        *("torch", "llmb", "builtins", "time", "random"),
        *("math", "hashlib", "socket", "select", "safetensors"),
    )
)
_OWN = "llmb"
#: torch itself sets properties of this class as its kinds of compiled artifacts become known.
_FILLED_IN = ("torch.compiler._cache.CacheInfo",)
_CACHED = type(functools.lru_cache(lambda: None))
_METHODS = (staticmethod, classmethod, property)
_WRAPPERS = (FunctionType, MethodType, functools.partial, _CACHED, *_METHODS)
_DEEPEST = 3  # torch.ops -> namespace -> operator -> overload
_Face = tuple[object, ...]
_Kind = Literal["module", "class", "object"]
_KINDS: tuple[_Kind, ...] = ("object", "class", "module")


class _Held(NamedTuple):
    """What a module, a class or an object has by name, held so that no identity is reused."""

    kind: _Kind
    path: str
    values: dict[str, object]
    #: What of it is looked at besides what can be called: constants of llmb, methods of a class.
    constants: bool


class Callables:
    """A snapshot: what has which names, and what makes up the functions among it.

    Both are compared for all at once, and by name only where they differ.
    """

    def __init__(self) -> None:
        """Take the snapshot (a tenth of a second for 100,000 names)."""
        self._held: dict[tuple[_Kind, str], _Held] = {}
        self._modules: dict[str, ModuleType] = {}
        #: Where an attribute of a class or of a single object is looked up after the object itself.
        self._behind: dict[str, tuple[type, ...]] = {}
        #: Class, metaclass and bases.
        self._bases: dict[str, _Face] = {}
        #: By identity: what can be called, or is a module; what functions are made of.
        self._called: set[int] = set()
        self._faces: dict[int, _Face] = {}
        self._met: set[int] = set()
        self._whole: set[int] = set()
        self._looked_inside: dict[int, object] = {}
        self._parts: dict[int, tuple[type, bool]] = {}
        with no_collection():
            for key, module in list(sys.modules.items()):
                name = _name(key)
                # What is being run comes first; it may be imported once more under its own name.
                if name in self._modules or not issubclass(type(module), ModuleType):
                    continue
                if _is_watched(name):
                    self._modules[name] = module
                    self._look(name, module)
        del self._met, self._whole, self._looked_inside, self._parts

    def replaced(self, later: Callables) -> tuple[str, ...]:
        """Return the names that stand for something else in ``later``, sorted.

        An addition counts where it hides something: a method of a base class, or a builtin. What
        else is new hides nothing; torch.compile puts what it has compiled among a module's names.
        """
        changed = {
            name for name, module in self._modules.items() if later._modules.get(name) is not module
        }
        for path, bases in self._bases.items():
            now = later._bases.get(path)
            if later._holds(path) if now is None else not _same(bases, now):
                changed.add(f"{path}.__bases__")
        same = set()
        for key, held in self._held.items():
            there = later._held.get(key)
            if there is not None and _same_values(held.values, there.values):
                same.add(key)
            else:
                changed |= set(self._changed(held, later, there))
        for key, held in later._held.items():
            if key not in same:
                added = (f"{held.path}.{last}" for last, _ in later._counted(held))
                changed |= {n for n in added if self._hides(n) and not self._find(n)}
        return tuple(sorted(changed | set(self._changed_inside(later))))

    def _changed(self, held: _Held, later: Callables, now: _Held | None) -> Iterator[str]:
        """Yield the names of ``held`` that stand for another object in ``later``, or for none."""
        there = {} if now is None else dict(later._counted(now))
        for last, value in self._counted(held):
            name = f"{held.path}.{last}"
            if last in there:
                if there[last] is not value:
                    yield name
            elif later._holds(held.path) and not later._find(name):
                yield name

    def _changed_inside(self, later: Callables) -> Iterator[str]:
        """Yield the names of functions that are the same objects and are made of other parts."""
        both = self._faces.keys() & later._faces.keys()
        ours, theirs = (list(map(of.__getitem__, both)) for of in (self._faces, later._faces))
        flat = chain.from_iterable
        if list(map(len, ours)) == list(map(len, theirs)) and all(
            map(is_, flat(ours), flat(theirs))
        ):
            return
        other = {id(one[0]) for one, now in zip(ours, theirs, strict=True) if not _same(one, now)}
        for key, held in self._held.items():
            now = later._held.get(key)
            there = {} if now is None else now.values
            for last, value in self._counted(held):
                if id(value) in other and there.get(last) is value:
                    yield f"{held.path}.{last}"

    def _counted(self, held: _Held) -> Iterator[tuple[str, object]]:
        """Yield of ``held`` what is looked at."""
        return ((n, value) for n, value in held.values.items() if self._counts(held, n, value))

    def _counts(self, held: _Held, last: str, value: object) -> bool:
        return (
            id(value) in self._called
            or (held.constants and not last.startswith("__"))
            or (held.kind == "class" and isinstance(value, _METHODS))
        )

    def _find(self, name: str) -> list[object]:
        """Return what ``name`` stood for; nothing if it was not there."""
        dot = name.rfind(".")
        while dot > 0:
            path, last = name[:dot], name[dot + 1 :]
            for kind in _KINDS:
                held = self._held.get((kind, path))
                if held and last in held.values and self._counts(held, last, held.values[last]):
                    return [held.values[last]]
            dot = name.rfind(".", 0, dot)
        return []

    def value(self, name: str) -> object:
        """Return what ``name`` stood for; None if it was not there."""
        found = self._find(name)
        if found:
            return found[0]
        if name.endswith(".__bases__") and name.rpartition(".")[0] in self._bases:
            return self._bases[name.rpartition(".")[0]][0]
        return self._modules.get(name)

    def strange(
        self, is_usual: Callable[[str], bool], earlier: Callables | None = None
    ) -> Iterator[tuple[str, object, str]]:
        """Yield what is in modules that come from the package whose name they bear, of odd files.

        Name, object, and the file it was written in, of which ``is_usual`` says no. With
        ``earlier`` only those of modules that came since.
        """
        homes = {name: _is_at_home(name, module) for name, module in self._modules.items()}
        held = [one for one in self._held.values() if self._is_in(one, homes, earlier)]
        files: dict[int, str] = {}
        usual: dict[str, bool] = {}
        for key, face in self._faces.items() if held else ():
            value = face[0]
            file = value.__code__.co_filename if type(value) is FunctionType else file_of(value)
            if file is None:
                continue
            if file not in usual:
                usual[file] = is_usual(file)
            if not usual[file]:
                files[key] = file
        told: set[str] = set()
        for one in held if files else ():
            for last, value in self._counted(one):
                name, file = f"{one.path}.{last}", files.get(id(value))
                if file is None or name in told or (earlier is not None and earlier._find(name)):
                    continue
                told.add(name)
                yield name, value, file

    def _is_in(self, held: _Held, homes: Mapping[str, bool], earlier: Callables | None) -> bool:
        """Tell whether ``held`` is of a module in ``homes``, and not of ``earlier``."""
        module = held.path
        while module and module not in homes:
            module = module.rpartition(".")[0]
        return homes.get(module, False) and (earlier is None or module not in earlier._modules)

    def is_member(self, name: str) -> bool:
        """Tell whether ``name`` is one of a class or of an object, not of a module."""
        return name.rpartition(".")[0] not in self._modules

    def __len__(self) -> int:
        looked_at = self._called | self._faces.keys()
        return len(self._bases) + sum(
            sum(map(looked_at.__contains__, map(id, held.values.values())))
            if not held.constants
            else sum(1 for _ in self._counted(held))
            for held in self._held.values()
        )

    def _holds(self, owner: str) -> bool:
        return owner in self._modules or owner in self._behind

    def _hides(self, name: str) -> bool:
        owner, _, last = name.rpartition(".")
        behind = self._behind.get(owner)
        if behind is not None:
            return any(last in vars(kind) for kind in behind)
        # A name that is new among the builtins hides none of them.
        return owner in self._modules and owner != "builtins" and hasattr(builtins, last)

    def _look(self, path: str, module: ModuleType) -> None:
        constants = path.partition(".")[0] == _OWN
        # A module of torch.backends stands before another, whose names it passes on.
        inner = vars(module).get("m") if hasattr(type(module), "__getattr__") else None
        passed_on = vars(inner) if isinstance(inner, ModuleType) else {}
        values = {**passed_on, **vars(module)}
        self._held["module", path] = _Held("module", path, values, constants)
        unmet = self._unmet(values)
        self._meet([value for _, value in unmet if callable(value)])
        for key, value in unmet:
            # `type` and not `isinstance`: torch keeps objects that warn when asked for their class.
            kind = type(value)
            if kind is FunctionType:
                continue
            if issubclass(kind, ModuleType):
                self._called.add(key)
            if issubclass(kind, type):
                assert isinstance(value, type)
                self._look_into(value)
            elif self._has_parts(kind):
                self._whole.add(key)
        if constants:
            self._meet(values.values())
        if not self._whole.isdisjoint(map(id, values.values())):
            for name, value in values.items():
                if id(value) in self._whole:
                    self._look_inside(f"{path}.{name}", value, 0)

    def _unmet(self, values: Mapping[str, object]) -> list[tuple[int, object]]:
        """Return those of ``values`` that no module had before, by identity."""
        found = dict(zip(map(id, values.values()), values.values(), strict=True))
        unmet = [item for item in found.items() if item[0] not in self._met]
        self._met.update(found)
        return unmet

    def _look_into(self, kind: type) -> None:
        path = _path_of(kind)
        if not _is_watched(path) or path in self._behind or path in _FILLED_IN:
            return
        self._behind[path] = kind.__mro__[1:]
        self._bases[path] = (kind, type(kind), *kind.__bases__)
        values = dict(vars(kind))
        constants = path.partition(".")[0] == _OWN  # slots, too
        self._held["class", path] = _Held("class", path, values, constants)
        self._meet(values.values())

    def _meet(self, values: Collection[object]) -> None:
        """Note which of ``values`` can be called, and what their functions are made of."""
        self._called.update(map(id, filter(callable, values)))
        faces = self._faces
        for value in values:
            if isinstance(value, _WRAPPERS) and id(value) not in faces:
                faces[id(value)] = _face(value)

    def _look_inside(self, path: str, holder: object, depth: int) -> None:
        """Look at the callables an object of torch's or llmb's own has as its attributes."""
        if id(holder) in self._looked_inside or path in self._modules or path in self._behind:
            return
        self._looked_inside[id(holder)] = holder
        try:
            attributes: dict[str, Any] = object.__getattribute__(holder, "__dict__")
            values = dict(attributes)
        except (AttributeError, RuntimeError):  # it has none, or another thread is writing
            return
        self._behind[path] = type(holder).__mro__
        self._held["object", path] = _Held("object", path, values, constants=False)
        self._meet([value for value in values.values() if callable(value)])
        for name, value in values.items():
            kind = type(value)
            if depth < _DEEPEST and self._has_parts(kind) and not isinstance(value, type):
                self._look_inside(f"{path}.{name}", value, depth + 1)

    def _has_parts(self, kind: type) -> bool:
        """Tell whether objects of ``kind`` are torch's or llmb's own, ``torch.ops`` among them."""
        if id(kind) not in self._parts:
            module = f"{_name(str(kind.__module__))}."
            self._parts[id(kind)] = kind, module.startswith(("torch.", "llmb."))
        return self._parts[id(kind)][1]


def _is_watched(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _WATCHED


def _name(name: str) -> str:
    """Return ``name``; for ``__main__`` its usual name, such as llmb.processes.worker."""
    running = sys.modules.get(name) if name == "__main__" else None
    spec = getattr(running, "__spec__", None)
    return name if spec is None else str(spec.name)


def _path_of(kind: type) -> str:
    """Return module and name of a class."""
    return f"{_name(str(kind.__module__))}.{kind.__qualname__}"


def _is_at_home(name: str, module: ModuleType) -> bool:
    """Tell whether ``module`` comes from the package whose name it bears, as its parts should."""
    top, _, inner = name.partition(".")
    if not inner:
        return True
    folder: Any = getattr(sys.modules.get(top), "__path__", None)
    file = getattr(module, "__file__", None)
    if not folder:
        return False
    plainly = str(file).startswith(f"{folder[0]}{os.sep}")
    return plainly or Path(str(file)).is_relative_to(folder[0])


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage where none is made.

    It would take two thirds of the time of a snapshot, and a fourth of an import's.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def functions(value: object) -> Iterator[FunctionType]:
    """Yield the Python functions that ``value`` is made of: wrapped, bound and closed over."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, _WRAPPERS) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            yield each
            waiting += _closed_over(each)
        elif isinstance(each, property):
            waiting += (each.fget, each.fset, each.fdel)
        elif isinstance(each, functools.partial):
            waiting.append(each.func)
        else:
            waiting.append(getattr(each, "__func__", None) or getattr(each, "__wrapped__", None))


def file_of(value: object) -> str | None:
    """Return the file that the outermost Python function of ``value`` was written in."""
    if type(value) is not FunctionType:
        if not isinstance(value, _WRAPPERS):
            return None
        value = next(functions(value), None)
    return None if value is None else value.__code__.co_filename


def _closed_over(function: FunctionType) -> list[object]:
    found: list[object] = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # still empty
            continue
        if isinstance(content, _WRAPPERS):
            found.append(content)
    return found


def _face(value: object) -> _Face:
    if isinstance(value, FunctionType) and not value.__closure__ and not value.__kwdefaults__:
        return value, value.__code__, value.__defaults__  # nearly all of them
    parts = [value]
    for function in functions(value):
        parts += (function, function.__code__, function.__defaults__)
        parts += (function.__kwdefaults__ or {}).values()
    return tuple(parts)


def _same_values(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return list(one) == list(other) and all(map(is_, one.values(), other.values()))


def _same(one: _Face, other: _Face) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def below(names: Iterable[str], *packages: str) -> tuple[str, ...]:
    """Return those of ``names`` that lie in one of ``packages``."""
    return tuple(
        name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)
    )
