"""Compare the callables of torch, llmb, builtins and the clocks with an earlier snapshot.

The identity of each object is compared. Of a Python function, the code, the defaults and the
closed-over functions are compared, too. Examples: ``torch.mm = fake`` and ``f.__code__ = code`` are
both found. ``observe.dispatcher`` finds kernels registered over torch's in the dispatcher.
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

#: Top-level packages with watched callables: packages used for training, for timing, and for
#: writing evidence (``hashlib``, ``socket``, ``safetensors``).
_WATCHED = frozenset(
    (
        *("torch", "llmb", "builtins", "time", "random"),
        *("math", "hashlib", "socket", "select", "safetensors"),
    )
)
_OWN = "llmb"
#: torch itself adds properties to ``CacheInfo`` as kinds of compiled artifacts become known.
_FILLED_IN = ("torch.compiler._cache.CacheInfo",)
#: torch.set_default_dtype points this old alias to another of torch's own storage classes.
_ALIAS = "torch", "Storage"
#: The classes, by default dtype.
_STORED_AS = ("FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage")
CACHED = type(functools.lru_cache(lambda: None))
METHODS = (staticmethod, classmethod, property)
#: Kinds of tables whose contents are compared: a plugin could fill or empty a table, and the name
#: of the table would keep the same object.
_CONTAINERS = (dict, list, set, deque)
#: Identity of an object, like ``id`` but without an audit event, which takes 20 times as long.
_which = object.__hash__
_WRAPPERS = (FunctionType, MethodType, functools.partial, CACHED, *METHODS)
_DEEPEST = 3  # torch.ops -> namespace -> operator -> overload
#: The replaceable parts of a Python function. Each read raises an audit event: read all in a call.
_parts_of = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CLASS = -1  # marks a class, in place of a depth
_Face = tuple[object, ...]


class _Room:
    """The names in a module, class or object, with the values at the time of the snapshot.

    ``head`` is the module, class or object itself; a class is followed by its metaclass and bases.
    ``items`` are all names with values. ``faces`` holds the compared names: name -> ``_face``.
    """

    __slots__ = (
        *("_functions", "_keywords", "_names", "_others", "_parts", "_values"),
        *("faces", "files", "head", "ways"),
    )

    def __init__(self, head: _Face, items: Mapping[str, Any], faces: dict[str, _Face]) -> None:
        self.head, self.faces = head, faces
        self._names, self._values = [*items], [*items.values()]
        #: File -> names with an outermost Python function written in the file.
        self.files: dict[str, list[str]] = {}
        #: Classes and objects to visit from here: path, class or object, depth.
        self.ways: list[tuple[str, Any, int]] = []
        self._functions: list[FunctionType] = []
        self._others: list[_Face] = []
        for name, face in faces.items():
            if len(face) > 1:
                value: Any = face[0]
                is_whole = type(value) is FunctionType and not value.__closure__
                self._functions += (value,) * is_whole
                self._others += (face,) * (not is_whole)
                code = next(filter(_is_code, face), None)
                if isinstance(code, CodeType):
                    self.files.setdefault(code.co_filename, []).append(name)
        self._keywords = [f.__kwdefaults__ for f in self._functions if f.__kwdefaults__]
        self._parts = self._made_of()
        if len(head) > 1:
            faces["__bases__"] = head

    def is_as_it_was(self, head: _Face, items: Mapping[str, Any]) -> bool:
        """Tell whether each name has the same value, and each function the same code and defaults.

        False also if the names have another order. The caller then compares name by name.
        """
        return (
            len(items) == len(self._names)
            and _same(head, self.head)
            and all(map(is_, [*items.values()], self._values))
            and all(map(is_, [*items], self._names))
            and _same(self._made_of(), self._parts)
            and all(_face(face[0], face) is face for face in self._others)
        )

    def _made_of(self) -> list[object]:
        """Return code, defaults and keyword defaults of all functions without a closure."""
        parts = chain.from_iterable(map(_parts_of, self._functions))
        return [*parts, *chain.from_iterable(map(dict.values, self._keywords))]


class Callables:
    """A snapshot: name -> object and parts. References are held, to prevent reuse of an ``id``."""

    def __init__(self, earlier: Callables | None = None) -> None:
        """Take the snapshot (0.2 to 0.4 s for 102,000 names).

        Unchanged rooms are shared with ``earlier``, which makes comparing the two snapshots cheap.
        """
        #: Path of a module, class or object -> the names in it.
        self._rooms: dict[str, _Room] = {}
        self._modules: dict[str, ModuleType] = {}
        #: Path of a class or object -> base classes searched after the class or object itself.
        self._behind: dict[str, tuple[type, ...]] = {}
        self._running = _name("__main__")
        self._walk({} if earlier is None else earlier._rooms)

    def go_on(self) -> None:
        """Add modules imported since; this process was forked from the snapshot's process.

        Forget the main module of the parent process, and any earlier import of this process's main
        module.
        """
        for name in {self._running, _name("__main__")}:
            self._modules.pop(name, None)
            for path in [path for path in self._rooms if f"{path}.".startswith(f"{name}.")]:
                del self._rooms[path]
                self._behind.pop(path, None)
        self._running = _name("__main__")
        self._walk({})

    def _walk(self, earlier: dict[str, _Room]) -> None:
        """Visit all modules not visited before."""
        self._earlier = earlier
        self._seen: set[int] = set()
        self._parted: dict[int, bool] = {}
        with no_collection():
            for key, module in list(sys.modules.items()):
                name = _name(key)
                # The main module comes first; Python may import the module again by real name.
                if name in self._modules or not issubclass(type(module), ModuleType):
                    continue
                if _is_watched(name):
                    self._modules[name] = module
                    self._look(name, module)
        del self._seen, self._parted, self._earlier

    def replaced(self, later: Callables) -> tuple[str, ...]:
        """Return the names bound to another object or changed in ``later``, sorted.

        A new name counts only where the name hides a method of a base class, or a builtin. Example:
        torch.compile adds compiled functions to a module's names, and hides nothing.
        """
        found = {
            name for name, module in self._modules.items() if later._modules.get(name) is not module
        }
        for owner in self._rooms.keys() | later._rooms.keys():
            room, other_room = self._rooms.get(owner), later._rooms.get(owner)
            if room is other_room:
                continue  # nearly all
            faces, others = (r.faces if r else {} for r in (room, other_room))
            held = later._holds(owner)
            for last, face in faces.items():
                other = others.get(last)
                if other is face:
                    continue
                if (owner, last) == _ALIAS and other and self._is_storage_of_torch(other[0]):
                    continue
                if held if other is None else not _same(face, other):
                    found.add(f"{owner}.{last}")
            added = others.keys() - faces.keys()
            found |= {f"{owner}.{last}" for last in added if self._hides(owner, last)}
        return tuple(sorted(found))

    def value(self, name: str) -> object:
        """Return the value of ``name`` in the snapshot; None if the name was absent."""
        face = self._face_of(name)
        return self._modules.get(name) if face is None else face[0]

    def holds(self, name: str, value: object, code: object) -> bool:
        """Tell whether ``name`` had this value, made of this ``code``, in the snapshot.

        ``code`` is None for a value without Python code of its own.
        """
        face = self._face_of(name)
        if face is None or face[0] is not value:
            return False
        return code is None or _is_among(code, face)

    def _face_of(self, name: str) -> _Face | None:
        owner, _, last = name.rpartition(".")
        room = self._rooms.get(owner)
        return room.faces.get(last) if room else None

    def written_elsewhere(
        self, is_at_home: Callable[[str], bool], earlier: Callables | None = None
    ) -> Iterator[tuple[str, object, str]]:
        """Yield name, value and file of Python functions with a file that is not at home.

        Only modules inside the folder of the package they are named after are searched; with
        ``earlier``, only modules that ``earlier`` lacks. For wrapped functions, the file of the
        outermost function counts.
        """
        inside = functools.cache(_is_inside)
        homes = {name: _is_at_home(name, module, inside) for name, module in self._modules.items()}
        for owner, room in self._rooms.items():
            strange = [file for file in room.files if not is_at_home(file)]
            if not strange:
                continue  # nearly all
            module = owner
            while module and module not in homes:
                module = module.rpartition(".")[0]
            if not homes.get(module) or (earlier is not None and module in earlier._modules):
                continue
            known = earlier._rooms.get(owner) if earlier else None
            for file in strange:
                for last in room.files[file]:
                    if known is None or last not in known.faces:
                        yield f"{owner}.{last}", room.faces[last][0], file

    def is_member(self, name: str) -> bool:
        """Tell whether ``name`` is an attribute of a class or object, not of a module."""
        return name.rpartition(".")[0] not in self._modules

    def __len__(self) -> int:
        return sum(len(room.faces) for room in self._rooms.values())

    def _is_storage_of_torch(self, value: object) -> bool:
        """Tell whether ``value`` is a storage class that torch had at the time of the snapshot."""
        faces = self._rooms[_ALIAS[0]].faces
        return any(value is faces[name][0] for name in _STORED_AS if name in faces)

    def _holds(self, owner: str) -> bool:
        return owner in self._modules or owner in self._behind

    def _hides(self, owner: str, last: str) -> bool:
        behind = self._behind.get(owner)
        if behind is not None:
            return any(last in vars(kind) for kind in behind)
        # A new name in ``builtins`` hides no builtin.
        return owner in self._modules and owner != "builtins" and hasattr(builtins, last)

    def _look(self, path: str, module: ModuleType) -> None:
        constants = path.partition(".")[0] == _OWN
        # torch.backends wraps some modules in a proxy, which passes on the names of module ``m``.
        inner = vars(module).get("m") if hasattr(type(module), "__getattr__") else None
        items = vars(module)
        if isinstance(inner, ModuleType):
            items = {**vars(inner), **items}

        def is_compared(name: str, value: object) -> bool:
            # `type` and not `isinstance`: torch keeps objects that warn when asked for their class.
            return (
                callable(value)
                or issubclass(type(value), ModuleType)
                or (constants and not name.startswith("__"))
            )

        self._enter(path, (module,), items, is_compared, 0)

    def _look_into(self, path: str, kind: type) -> None:
        if _which(kind) in self._seen:
            return
        self._seen.add(_which(kind))
        if path in self._behind or path in _FILLED_IN:
            return
        self._behind[path] = kind.__mro__[1:]
        everything = path.partition(".")[0] == _OWN  # slots and constants, too

        def is_compared(name: str, value: object) -> bool:
            own = everything and not name.startswith("__")
            return own or callable(value) or isinstance(value, METHODS)

        head = (kind, type(kind), *kind.__bases__)
        self._enter(path, head, vars(kind), is_compared, _CLASS)

    def _look_inside(self, path: str, holder: object, depth: int) -> None:
        """Snapshot the callables among the attributes of an object of torch or llmb."""
        if _which(holder) in self._seen or path in self._modules or path in self._behind:
            return
        self._seen.add(_which(holder))
        try:
            attributes: dict[str, Any] = object.__getattribute__(holder, "__dict__")
        except AttributeError:  # no ``__dict__``, for example an object with slots
            return
        self._behind[path] = type(holder).__mro__
        self._enter(path, (holder,), attributes, lambda _, value: callable(value), depth + 1)

    def _enter(
        self,
        path: str,
        head: _Face,
        items: Mapping[str, Any],
        is_compared: Callable[[str, object], bool],
        depth: int,
    ) -> None:
        """Keep a snapshot of ``items``, and visit the classes and objects in ``items``."""
        room = self._earlier.get(path)
        if room is None or not room.is_as_it_was(head, items):
            known = room.faces if room else {}
            items = dict(items)  # another thread may be writing
            faces = {
                name: _face(value, known.get(name))
                for name, value in items.items()
                if is_compared(name, value)
            }
            room = _Room(head, items, faces)
            if depth != _CLASS:
                room.ways = [*self._ways(path, items, depth)]
        self._rooms[path] = room
        for inner, holder, how_deep in room.ways:
            if how_deep == _CLASS:
                self._look_into(inner, holder)
            else:
                self._look_inside(inner, holder, how_deep)

    def _ways(
        self, path: str, items: Mapping[str, Any], depth: int
    ) -> Iterator[tuple[str, Any, int]]:
        """Yield the places to visit from ``path``: classes in modules; objects of torch or llmb."""
        for name, value in items.items():
            kind = type(value)
            if issubclass(kind, type):
                if depth == 0 and _is_watched(inner := _path_of(value)):
                    yield inner, value, _CLASS
            elif depth <= _DEEPEST and self._has_parts(kind):
                yield f"{path}.{name}", value, depth

    def _has_parts(self, kind: type) -> bool:
        """Tell whether torch or llmb defines the class ``kind``, such as the class of torch.ops."""
        found = self._parted.get(_which(kind))
        if found is None:
            found = f"{_name(str(kind.__module__))}.".startswith(("torch.", "llmb."))
            self._parted[_which(kind)] = found
        return found


def _is_watched(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _WATCHED


def _name(name: str) -> str:
    """Return ``name``; for ``__main__`` the usual name, such as llmb.processes.worker."""
    running = sys.modules.get(name) if name == "__main__" else None
    spec = getattr(running, "__spec__", None)
    return name if spec is None else str(spec.name)


def _path_of(kind: type) -> str:
    """Return module and name of a class."""
    return f"{_name(str(kind.__module__))}.{kind.__qualname__}"


def _is_at_home(name: str, module: ModuleType, inside: Callable[[str, str], bool]) -> bool:
    """Tell whether the file of ``module`` lies in the package folder of the same name."""
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
    """Switch the garbage collector off for a while.

    Collections would take two thirds of the time of a snapshot, and a fourth of an import's.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def functions(value: object) -> Iterator[FunctionType]:
    """Yield the Python functions inside ``value``: wrapped, bound and closed over."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, _WRAPPERS) or _which(each) in seen:
            continue
        seen.add(_which(each))
        if isinstance(each, FunctionType):
            yield each
            waiting += map(content_of, each.__closure__ or ())
        elif isinstance(each, property):
            waiting += (each.fget, each.fset, each.fdel)
        elif isinstance(each, functools.partial):
            waiting += (*each.args, *each.keywords.values(), each.func)
        else:
            waiting.append(getattr(each, "__func__", None) or getattr(each, "__wrapped__", None))


def code_of(value: object) -> CodeType | None:
    """Return the code of the outermost Python function of ``value``."""
    function = next(functions(value), None)
    return None if function is None else function.__code__


def content_of(cell: CellType) -> object:
    """Return the content of ``cell`` of a closure; None of an empty cell."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _face(value: Any, known: _Face | None = None) -> _Face:
    """Return the compared parts of ``value``; ``known`` itself if all parts are identical."""
    kind = type(value)
    if kind is FunctionType:
        if not value.__closure__ and not value.__kwdefaults__:  # nearly all functions
            code, defaults = value.__code__, value.__defaults__
            if known is not None and len(known) == 3:
                one, its_code, its_defaults = known
                if one is value and its_code is code and its_defaults is defaults:
                    return known
            return value, code, defaults
    elif kind in _CONTAINERS:  # constants of llmb alone are compared
        return _kept((value, *_contents(value)), known)
    elif kind is MethodDescriptorType or kind is type or not issubclass(kind, _WRAPPERS):
        return _plain(value, known)
    parts = [value]
    for function in functions(value):
        parts += (function, function.__code__, function.__defaults__)
        parts += (function.__kwdefaults__ or {}).values()
    return _kept(tuple(parts), known)


def _contents(value: Any, depth: int = _DEEPEST) -> Iterator[object]:
    """Yield keys and values of the container ``value``, and of containers inside, 4 deep."""
    items = list(value)
    if type(value) is dict:
        items += value.values()
    for item in items:
        yield item
        if depth and type(item) in (*_CONTAINERS, tuple):
            yield from _contents(item, depth - 1)


def _plain(value: object, known: _Face | None) -> _Face:
    return known if known is not None and len(known) == 1 and known[0] is value else (value,)


def _is_among(part: object, face: _Face) -> bool:
    return any(part is each for each in face)


def _is_code(part: object) -> bool:
    return type(part) is CodeType


def _kept(face: _Face, known: _Face | None) -> _Face:
    return known if known is not None and _same(face, known) else face


def _same(one: Collection[object], other: Collection[object]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def below(names: Iterable[str], *packages: str) -> tuple[str, ...]:
    """Return the ``names`` inside any of ``packages``, such as ``torch.mm`` in ``torch``."""
    return tuple(
        name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)
    )
