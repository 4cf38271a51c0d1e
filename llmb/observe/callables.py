"""Which callables of torch, llmb, builtins and the clocks are still the ones they were.

Identity is compared, and of Python functions their code too. Kernels registered over torch's in its
dispatcher are not seen here.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType

#: Top-level packages whose callables are looked at: what is trained with, and what times it.
_WATCHED = ("torch", "llmb", "builtins", "time", "random")
_OWN = "llmb"
_METHODS = (staticmethod, classmethod, property)
_Face = tuple[object, object, object]


class Callables:
    """A snapshot: name -> the object, its code and defaults, held so that none is reused."""

    def __init__(self) -> None:
        """Take the snapshot (a quarter of a second for 75,000 names)."""
        self._faces: dict[str, _Face] = {}
        self._classes: dict[str, type] = {}
        self._modules: set[str] = set()
        for name, module in list(sys.modules.items()):
            if issubclass(type(module), ModuleType) and name.partition(".")[0] in _WATCHED:
                self._modules.add(name)
                self._look(name, module)

    def replaced(self, later: Callables) -> tuple[str, ...]:
        """Return the names that stand for something else in ``later``, sorted.

        An addition counts where it hides something: a method of a base class, or a builtin. What
        else is new hides nothing; torch.compile puts what it has compiled among a module's names.
        """
        changed = {
            name
            for name, face in self._faces.items()
            if name in later._faces and not _same(face, later._faces[name])
        }
        gone = {
            name
            for name in self._faces
            if name not in later._faces and self._owner(name) in later._modules
        }
        added = (name for name in later._faces if name not in self._faces)
        return tuple(sorted(changed | gone | {name for name in added if self._hides(name)}))

    def _owner(self, name: str) -> str:
        return name.rpartition(".")[0]

    def _hides(self, name: str) -> bool:
        owner, _, last = name.rpartition(".")
        kind = self._classes.get(owner)
        if kind is not None:
            return any(last in vars(base) for base in kind.__mro__[1:])
        return owner in self._modules and hasattr(builtins, last)

    def _look(self, module_name: str, module: ModuleType) -> None:
        own = _is_own(module_name)
        for name, value in list(vars(module).items()):
            # `type` and not `isinstance`: torch keeps objects that warn when asked for their class.
            if issubclass(type(value), type):
                self._look_into(value)
            if callable(value) or (own and _is_constant(name, value)):
                self._faces[f"{module_name}.{name}"] = _face(value)

    def _look_into(self, kind: type) -> None:
        if kind.__module__.partition(".")[0] not in _WATCHED:
            return
        path = f"{kind.__module__}.{kind.__qualname__}"
        if path in self._classes:
            return
        self._classes[path] = kind
        for name, value in list(vars(kind).items()):
            if callable(value) or isinstance(value, _METHODS):
                self._faces[f"{path}.{name}"] = _face(value)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == _OWN


def _is_constant(name: str, value: object) -> bool:
    return not name.startswith("__") and not isinstance(value, ModuleType)


def _face(value: object) -> _Face:
    inner = getattr(value, "__func__", None) if isinstance(value, _METHODS) else value
    if isinstance(inner, FunctionType):
        return value, inner.__code__, inner.__defaults__
    return value, None, None


def _same(one: _Face, other: _Face) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def below(names: Iterable[str], *packages: str) -> tuple[str, ...]:
    """Return those of ``names`` that lie in one of ``packages``."""
    return tuple(
        name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)
    )
