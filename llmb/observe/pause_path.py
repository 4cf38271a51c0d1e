"""Compare the functions that the pause of a step calls, in every pause (rule N1).

Rule N1 compares all callables once, after the stream. A plugin could replace ``Channel.receive`` or
``torch.no_grad.__enter__``, and put the method back in the pause of the last step. The plugin would
know of a judged step before llmb reads the gradients of the step. A comparison of 3,900 names takes
0.7 ms, and 0.3 ms of those that a pause uses before the reading.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import attrgetter, is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from llmb.observe.callables import METHODS, content_of, functions

#: Modules of llmb that a pause runs through: all functions, classes and constants are compared. A
#: process loads them here if not before: a plugin could load and change them first.
_MODULES = (
    *("llmb.clock", "llmb.wire.channel", "llmb.wire.messages", "llmb.records.places"),
    *("llmb.records.audited", "llmb.observe.canonical", "llmb.observe.host_bytes"),
    *("llmb.observe.ledger", "llmb.observe.gradient_ledger", "llmb.observe.output_ledger"),
    *("llmb.observe.noise", "llmb.observe.optimizer", "llmb.observe.outputs"),
    "llmb.observe.step_sampler",
    *("llmb.observe.places", "llmb.observe.shard_places"),
    *("llmb.observe.exactness", "llmb.observe.pause_path", "llmb.observe.plain_tensors"),
    *("llmb.observe.weights", "llmb.observe.weights_file", "llmb.parallel.shards"),
    *("llmb.reference.train_loop", "llmb.reference.generate"),
)
#: Modules of Python, pydantic and torch whose functions these modules call: all callables are
#: compared, and those of their classes.
_CALLED = (
    *("abc", "builtins", "contextlib", "hashlib", "random", "socket", "signal", "json"),
    *("json.encoder", "torch.overrides", "torch.utils._python_dispatch"),
    *("pydantic.main", "pydantic.type_adapter"),
    *("torch", "torch._tensor", "torch.functional", "torch._jit_internal"),
    *("torch.autograd.grad_mode", "torch.utils._contextlib"),
)
#: Of torch's own module these classes are compared: the others are no part of a pause.
_TORCH, _OF_TORCH = "torch", ("Tensor", "Event")
#: Where the parameters are sharded over ranks.
_CALLED_BY_RANKS = (
    *("llmb.parallel.layout", "llmb.parallel.ranks", "llmb.parallel.shared_channel"),
    *("torch._ops", "torch.autograd.function", "torch.utils._pytree"),
    *("torch.distributed._functional_collectives", "torch.distributed.c10d_logger"),
    *("torch.distributed.device_mesh", "torch.distributed.distributed_c10d"),
    *("torch.distributed.tensor._api", "torch.distributed.tensor._redistribute"),
    *("torch.distributed.tensor._utils", "torch.distributed.tensor.placement_types"),
)
#: torch.set_default_dtype points this old alias to another of torch's own classes.
_ALIAS = "torch.Storage"
#: torch's operators that choose and read a sample, commit to the sample and copy it to the host;
#: and those that draw the noise of generated words, on a device or on the host.
_KERNELS = (
    *("as_strided", "cat", "_to_copy", "copy_", "detach", "view", "view.dtype", "stack"),
    *("slice.Tensor", "clone", "arange", "mul.Tensor", "add.Tensor"),
    # calls between these operators
    *("to.dtype", "to.device", "to.dtype_layout", "narrow", "select.int", "detach_", "resize_"),
    *("resolve_conj", "resolve_neg", "empty.memory_format", "empty_like", "empty_strided"),
    # of tensors that are not contiguous, and of a device that records its steps
    *("index.Tensor", "unsqueeze", "floor_divide", "remainder.Tensor", "unbind.int", "lift_fresh"),
    *("contiguous", "reshape", "_reshape_alias", "_unsafe_view", "split_with_sizes"),
    # of a rank's columns of a gradient
    *("zeros", "ge.Tensor", "lt.Tensor", "bitwise_and.Tensor", "__and__.Tensor", "all.dim"),
    *("sub.Tensor", "index_put_", "_index_put_impl_", "nonzero"),
    # of logits, at drawn places
    *("randint.generator", "randint.low_generator", "random_.from", "remainder.Scalar", "expand"),
    *("repeat_interleave.self_int", "repeat_interleave.Tensor", "flatten.using_ints"),
    *("exponential_", "uniform_", "log_", "neg_"),
)
#: What a pause uses before the reading, when it looks at the types of objects.
_BEFORE_READING = (
    *("llmb.", "builtins", "gc", "os", "signal", "sys", "time"),
    *("torch._C", "torch.overrides", "torch.utils._python_dispatch"),
)
_DECODER = "_ADAPTER"
#: pydantic's reader and writer of a class of messages.
_READERS = ("__pydantic_serializer__", "__pydantic_validator__")
#: Bit of a class that Python code can change (``Py_TPFLAGS_IMMUTABLETYPE`` is unset).
_IMMUTABLE = 1 << 8
#: Full name, value, and code (None: no Python function) of a name that has changed.
Changed = tuple[str, object, object]


@dataclass(frozen=True)
class _ComparedNames:
    """The compared names of a module or class, with the values before any code of the plugin."""

    name: str
    holder: Mapping[str, Any]
    values: Mapping[str, Any]
    #: New names that would hide something: an attribute of a base class, or a builtin.
    hiding: frozenset[str]


class _Loaded(dict[str, ModuleType]):
    """Modules by name, of which ``get`` returns the present ones: a function may import in a pause.

    Example: a rank's reading imports a function of ``torch.distributed.tensor._utils``.
    """

    @property
    def get(self) -> Callable[[str], object]:  # type: ignore[override]
        return sys.modules.get


def comparison(
    modules: Collection[ModuleType] = (), *, ranks: bool = False, reads: bool = True
) -> Callable[[], list[Changed]]:
    """Return a function that returns each name that has another value or code than now.

    ``modules`` of llmb are compared besides those that every pause runs through; with ``ranks``
    also the modules that ranks exchange gradients through. Without ``reads`` only names that a
    pause uses before the reading are compared. The returned function is a closure: a plugin could
    replace names of this module or of ``builtins``, and the function looks up none.
    """
    every = [*_rooms([*map(import_module, _MODULES), *modules], ranks=ranks)]
    if not reads:
        every = [room for room in every if room.name.startswith(_BEFORE_READING)]
    rooms = [
        (room.name, room.holder, room.holder.get, len(room.holder), {*room.holder}, room.hiding)
        for room in every
    ]
    held = [
        ([f"{room.name}.{name}" for name in room.values], [*room.values], [*room.values.values()])
        for room in every
    ]
    parts_of = attrgetter("__code__", "__defaults__", "__kwdefaults__")  # can be exchanged
    code_of = attrgetter("__code__")
    once = {
        function: (f"{room.name}.{name}", function, parts_of(function))
        for room in every
        for name, value in room.values.items()
        for function in functions(value)
    }
    made = [*once.values()]
    #: Functions that other functions close over, such as the inner function of a context manager.
    closed = [
        (name, cell, cell.cell_contents)
        for name, function, _ in made
        for cell in function.__closure__ or ()
        if type(content_of(cell)) is FunctionType
    ]
    holders = [function for _, function, _ in made] + [cell for _, cell, _ in closed]
    #: Code, defaults and more of all functions in one call: a read of an attribute of a function
    #: would be an audit event, which rule N2 hears.
    get_referents = gc.get_referents
    referents = get_referents(*holders)
    each, together, true_of_all, same, size, kind_of = map, zip, all, is_, len, type
    can_call, method_kinds, is_any = callable, METHODS, isinstance

    def is_special(name: str, value: object) -> bool:
        """Tell whether Python itself calls ``value`` by ``name``, such as ``__del__``.

        torch.compile puts names such as ``__compiled_fn_1`` into the module of a function.
        """
        return name[:2] == "__" == name[-2:] and (can_call(value) or is_any(value, method_kinds))

    def changed() -> list[Changed]:
        differ: list[tuple[str, object]] = []
        for (room, holder, get, count, known, hiding), held_of in together(rooms, held):
            full, names, values = held_of
            if not true_of_all(each(same, each(get, names), values)):
                now = [*each(get, names)]
                differ += [(n, v) for n, v, was in together(full, now, values) if v is not was]
            if size(holder) != count:
                new = [
                    name
                    for name in holder
                    if kind_of(name) is not str  # a subclass would learn when it is compared
                    or (name not in known and (name in hiding or is_special(name, get(name))))
                ]
                differ += [(f"{room}.{name}", get(name)) for name in new]
        found: list[Changed] = [
            (name, value, code_of(value) if kind_of(value) is FunctionType else None)
            for name, value in differ
        ]
        now = get_referents(*holders)
        if size(now) != size(referents) or not true_of_all(each(same, now, referents)):
            found += [
                (name, function, code_of(function))
                for name, function, parts in made
                if not true_of_all(each(same, parts_of(function), parts))
            ]
            found += [
                (name, contents, None)
                for name, cell, inner in closed
                for contents in get_referents(cell) or (None,)
                if contents is not inner
            ]
        return found

    return changed


def kernels() -> Callable[..., list[tuple[str, str]]]:
    """Return a function that returns operators of a pause with another table of kernels than now.

    ``torch.library`` registers kernels, and takes the kernels back. Each pair is the name of the
    operator, such as ``aten::cat``, and the dispatcher's table, with the fallbacks of all keys. A
    call compares a drawn third of the operators, or ``every`` operator.
    """
    table, each, together, drawn = torch._C._dispatch_dump_table, map, zip, os.urandom
    names = [name for part in _KERNELS if torch._C._dispatch_has_kernel(name := f"aten::{part}")]
    tables = [*map(table, names)]
    thirds = [(names[n::3], tables[n::3]) for n in range(3)]
    known = dict[str, str]()  # equal tables are kept once

    def changed(*, every: bool = False) -> list[tuple[str, str]]:
        some, before = (names, tables) if every else thirds[drawn(1)[0] % 3]
        now = [*each(table, some)]
        if now == before:
            return []
        differ = [(name, new) for name, new, old in together(some, now, before) if new != old]
        return [(name, known.setdefault(new, new)) for name, new in differ]

    return changed


def _rooms(own: Sequence[ModuleType], *, ranks: bool) -> Iterator[_ComparedNames]:
    others = [*_there((*_CALLED, *_CALLED_BY_RANKS * ranks))]
    yield from _called_by_name(own, others)
    loaded = _Loaded({module.__name__: module for module in (*own, *others)})
    yield _ComparedNames("sys.modules", loaded, dict(loaded), frozenset())
    seen = set[int]()
    for module in (*own, *others):
        if id(module) in seen:
            continue
        seen.add(id(module))
        items, is_own = vars(module), module.__name__.startswith("llmb.")
        hiding = vars(builtins) if module is not builtins else ()
        kept = dict(_kept(module.__name__, items, is_own=is_own))
        yield _ComparedNames(module.__name__, items, kept, frozenset(hiding))
        for kind in filter(partial(_is_of, module), items.values()):
            # Python asks a class's bases and metaclass, too: for an attribute, for `isinstance`.
            for each in (*kind.__mro__, *type(kind).__mro__):
                if id(each) not in seen and not each.__flags__ & _IMMUTABLE:
                    seen.add(id(each))
                    yield _room_of(each, is_own=each.__module__.startswith("llmb."))
        if _DECODER in items:  # pydantic calls the attributes
            adapter = vars(items[_DECODER])
            read = {name: adapter[name] for name in ("validator", "serializer")}
            yield _ComparedNames(f"{module.__name__}.{_DECODER}", adapter, read, frozenset())


def _called_by_name(
    own: Sequence[ModuleType], others: Sequence[ModuleType]
) -> Iterator[_ComparedNames]:
    """Yield the functions that code calls as attributes of other modules, which are not compared.

    Examples: ``gc.disable`` in a module of llmb's ``own``, and ``torch._C._set_grad_enabled`` in
    ``torch.autograd.grad_mode``, one of the ``others``.
    """
    used = defaultdict[str, set[str]](set)
    holders = dict[str, ModuleType]()
    for module in (*own, *others):
        names = _names_in(module)
        for outer in filter(_is_module, map(vars(module).get, names)):
            for holder in (outer, *filter(_is_module, map(vars(outer).get, names))):
                is_new = holder not in own and holder not in others
                if is_new and (module in own or holder is torch._C):
                    holders[holder.__name__] = holder
                    used[holder.__name__] |= {n for n in names if callable(vars(holder).get(n))}
    for name, holder in holders.items():
        if used[name]:
            kept = {one: vars(holder)[one] for one in sorted(used[name])}
            yield _ComparedNames(name, vars(holder), kept, frozenset())


def _names_in(module: ModuleType) -> set[str]:
    """Return the names that the code of ``module`` looks up, globals and attributes alike."""
    kinds = [kind for kind in vars(module).values() if issubclass(type(kind), type)]
    values = [value for holder in (module, *kinds) for value in vars(holder).values()]
    callables = (one for one in values if callable(one) or issubclass(type(one), METHODS))
    every = (function for one in callables for function in functions(one))
    waiting = [one.__code__ for one in every if one.__module__ == module.__name__]
    found = set[str]()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += (part for part in code.co_consts if isinstance(part, CodeType))
    return found


def _is_module(value: object) -> TypeGuard[ModuleType]:
    return type(value) is ModuleType


def _there(names: Iterable[str]) -> Iterator[ModuleType]:
    """Yield the modules ``names``, as far as this version of torch has them."""
    for name in names:
        with suppress(ImportError):
            yield import_module(name)


def _room_of(kind: type, *, is_own: bool) -> _ComparedNames:
    behind = (name for base in kind.__mro__[1:] for name in vars(base))
    kept = {n: value for n, value in vars(kind).items() if _is_method(n, value, is_own=is_own)}
    return _ComparedNames(
        f"{kind.__module__}.{kind.__qualname__}", vars(kind), kept, frozenset(behind)
    )


def _kept(module: str, items: Mapping[str, Any], *, is_own: bool) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a module: of llmb's ``own`` constants, too."""
    for name, value in items.items():
        own = is_own and not name.startswith("__")
        if (own or callable(value)) and f"{module}.{name}" != _ALIAS:
            yield name, value


def _is_of(module: ModuleType, value: Any) -> bool:
    """Tell whether ``value`` is a class of ``module`` that Python code can change.

    A class may name the package in place of a private module, as ``DTensor`` does.
    """
    return (
        issubclass(type(value), type)  # some objects of torch warn when asked for their class
        and f"{module.__name__}.".startswith(f"{value.__module__}.")
        and (value.__module__ != _TORCH or value.__name__ in _OF_TORCH)
        and not value.__flags__ & _IMMUTABLE
    )


def _is_method(name: str, value: object, *, is_own: bool) -> bool:
    if is_own:
        return isinstance(value, FunctionType | staticmethod | classmethod | property) or (
            name in _READERS
        )
    return callable(value) or isinstance(value, METHODS)
