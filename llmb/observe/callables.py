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
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from pathlib import Path
from types import CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

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
#: Which object it is: what ``id`` tells, without an audit event, which takes twenty times as long.
_which = object.__hash__
_WRAPPERS = (FunctionType, MethodType, functools.partial, _CACHED, *_METHODS)
_DEEPEST = 3  # torch.ops -> namespace -> operator -> overload
_Face = tuple[object, ...]
_Faces = dict[str, _Face]


class Callables:
    """A snapshot: name -> the object and what makes it up, held so that no identity is reused."""

    def __init__(self, earlier: Callables | None = None) -> None:
        """Take the snapshot (a tenth of a second for 100,000 names).

        What is as it was in ``earlier`` is shared with it: to compare the two takes little then.
        """
        #: Path of a module, class or object -> the names in it.
        self._faces: dict[str, _Faces] = {}
        self._modules: dict[str, ModuleType] = {}
        #: Where an attribute of a class or of a single object is looked up after the object itself.
        self._behind: dict[str, tuple[type, ...]] = {}
        self._running = _name("__main__")
        self._walk({} if earlier is None else earlier._faces)

    def go_on(self) -> None:
        """Look at what came since: this process was forked from the one that was looked at.

        What was run there is forgotten, and so is what was imported there and is run here.
        """
        for name in {self._running, _name("__main__")}:
            self._modules.pop(name, None)
            for path in [path for path in self._faces if f"{path}.".startswith(f"{name}.")]:
                del self._faces[path]
                self._behind.pop(path, None)
        self._running = _name("__main__")
        self._walk({})

    def _walk(self, earlier: dict[str, _Faces]) -> None:
        """Look at all modules that have not been looked at."""
        self._earlier = earlier
        self._seen: set[int] = set()
        self._parted: dict[int, bool] = {}
        with no_collection():
            for key, module in list(sys.modules.items()):
                name = _name(key)
                # What is being run comes first; it may be imported once more under its own name.
                if name in self._modules or not issubclass(type(module), ModuleType):
                    continue
                if _is_watched(name):
                    self._modules[name] = module
                    self._look(name, module)
        del self._seen, self._parted, self._earlier

    def replaced(self, later: Callables) -> tuple[str, ...]:
        """Return the names that stand for something else in ``later``, sorted.

        An addition counts where it hides something: a method of a base class, or a builtin. What
        else is new hides nothing; torch.compile puts what it has compiled among a module's names.
        """
        found = {
            name for name, module in self._modules.items() if later._modules.get(name) is not module
        }
        for owner in self._faces.keys() | later._faces.keys():
            faces, others = self._faces.get(owner, {}), later._faces.get(owner, {})
            if _same(faces, others) and _same(faces.values(), others.values()):
                continue  # nearly all
            held = later._holds(owner)
            for last, face in faces.items():
                other = others.get(last)
                if other is face:
                    continue
                if held if other is None else not _same(face, other):
                    found.add(f"{owner}.{last}")
            added = others.keys() - faces.keys()
            found |= {f"{owner}.{last}" for last in added if self._hides(owner, last)}
        return tuple(sorted(found))

    def value(self, name: str) -> object:
        """Return what ``name`` stood for; None if it was not there."""
        owner, _, last = name.rpartition(".")
        face = self._faces.get(owner, {}).get(last)
        return self._modules.get(name) if face is None else face[0]

    def written_elsewhere(
        self, is_at_home: Callable[[str], bool], earlier: Callables | None = None
    ) -> Iterator[tuple[str, object, str]]:
        """Yield names made of Python functions whose file is not at home: name, value and file.

        Of modules of the package whose name they bear, with ``earlier`` only of those that came
        since. Of wrapped functions the outermost one's file counts.
        """
        inside = functools.cache(_is_inside)
        homes = {name: _is_at_home(name, module, inside) for name, module in self._modules.items()}
        for owner, faces in self._faces.items():
            module = owner
            while module and module not in homes:
                module = module.rpartition(".")[0]
            if not homes.get(module) or (earlier is not None and module in earlier._modules):
                continue
            known = {} if earlier is None else earlier._faces.get(owner, {})
            for last, face in faces.items():
                if len(face) == 1 or last in known:
                    continue
                code = next(filter(_is_code, face), None)
                if isinstance(code, CodeType) and not is_at_home(code.co_filename):
                    yield f"{owner}.{last}", face[0], code.co_filename

    def is_member(self, name: str) -> bool:
        """Tell whether ``name`` is one of a class or of an object, not of a module."""
        return name.rpartition(".")[0] not in self._modules

    def __len__(self) -> int:
        return sum(map(len, self._faces.values()))

    def _holds(self, owner: str) -> bool:
        return owner in self._modules or owner in self._behind

    def _hides(self, owner: str, last: str) -> bool:
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
        faces, known = self._room(path)
        for name, value in {**passed_on, **vars(module)}.items():
            # `type` and not `isinstance`: torch keeps objects that warn when asked for their class.
            kind = type(value)
            if kind is FunctionType:
                faces[name] = _face(value, known.get(name))
                continue
            if issubclass(kind, ModuleType):
                faces[name] = _plain(value, known.get(name))
            elif callable(value) or (constants and not name.startswith("__")):
                faces[name] = _face(value, known.get(name))
            if issubclass(kind, type):
                self._look_into(value)
            elif self._has_parts(kind):
                self._look_inside(f"{path}.{name}", value, 0)

    def _look_into(self, kind: type) -> None:
        if _which(kind) in self._seen:
            return
        self._seen.add(_which(kind))
        path = _path_of(kind)
        if not _is_watched(path) or path in self._behind or path in _FILLED_IN:
            return
        self._behind[path] = kind.__mro__[1:]
        faces, known = self._room(path)
        faces["__bases__"] = _kept((kind, type(kind), *kind.__bases__), known.get("__bases__"))
        everything = path.partition(".")[0] == _OWN  # slots and constants, too
        for name, value in list(vars(kind).items()):
            own = everything and not name.startswith("__")
            if own or callable(value) or isinstance(value, _METHODS):
                faces[name] = _face(value, known.get(name))

    def _look_inside(self, path: str, holder: object, depth: int) -> None:
        """Look at the callables an object of torch's or llmb's own has as its attributes."""
        if _which(holder) in self._seen or path in self._modules or path in self._behind:
            return
        self._seen.add(_which(holder))
        try:
            attributes: dict[str, Any] = object.__getattribute__(holder, "__dict__")
            items = list(attributes.items())
        except (AttributeError, RuntimeError):  # it has none, or another thread is writing
            return
        self._behind[path] = type(holder).__mro__
        faces, known = self._room(path)
        for name, value in items:
            if callable(value):
                faces[name] = _face(value, known.get(name))
            kind = type(value)
            if depth < _DEEPEST and self._has_parts(kind) and not isinstance(value, type):
                self._look_inside(f"{path}.{name}", value, depth + 1)

    def _room(self, path: str) -> tuple[_Faces, _Faces]:
        """Return where the names in ``path`` go, and what was there earlier."""
        return self._faces.setdefault(path, {}), self._earlier.get(path, {})

    def _has_parts(self, kind: type) -> bool:
        """Tell whether objects of ``kind`` are torch's or llmb's own, ``torch.ops`` among them."""
        found = self._parted.get(_which(kind))
        if found is None:
            found = f"{_name(str(kind.__module__))}.".startswith(("torch.", "llmb."))
            self._parted[_which(kind)] = found
        return found


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


def _is_at_home(name: str, module: ModuleType, inside: Callable[[str, str], bool]) -> bool:
    """Tell whether ``module`` comes from the package whose name it bears, as its parts should."""
    top, _, inner = name.partition(".")
    if not inner:
        return True
    folder: Any = getattr(sys.modules.get(top), "__path__", None)
    file = getattr(module, "__file__", None)
    return bool(folder) and inside(os.path.dirname(str(file)), folder[0])


def _is_inside(folder: str, outer: str) -> bool:
    return Path(folder).is_relative_to(outer)


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
        if not isinstance(each, _WRAPPERS) or _which(each) in seen:
            continue
        seen.add(_which(each))
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


def _face(value: Any, known: _Face | None = None) -> _Face:
    """Return what makes ``value`` up: ``known`` itself where that says the same."""
    kind = type(value)
    if kind is FunctionType:
        if not value.__closure__ and not value.__kwdefaults__:  # nearly all of them
            code, defaults = value.__code__, value.__defaults__
            if known is not None and len(known) == 3:
                one, its_code, its_defaults = known
                if one is value and its_code is code and its_defaults is defaults:
                    return known
            return value, code, defaults
    elif kind is MethodDescriptorType or kind is type or not issubclass(kind, _WRAPPERS):
        return _plain(value, known)
    parts = [value]
    for function in functions(value):
        parts += (function, function.__code__, function.__defaults__)
        parts += (function.__kwdefaults__ or {}).values()
    return _kept(tuple(parts), known)


def _plain(value: object, known: _Face | None) -> _Face:
    return known if known is not None and len(known) == 1 and known[0] is value else (value,)


def _is_code(part: object) -> bool:
    return type(part) is CodeType


def _kept(face: _Face, known: _Face | None) -> _Face:
    return known if known is not None and _same(face, known) else face


def _same(one: Collection[object], other: Collection[object]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def below(names: Iterable[str], *packages: str) -> tuple[str, ...]:
    """Return those of ``names`` that lie in one of ``packages``."""
    return tuple(
        name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)
    )
