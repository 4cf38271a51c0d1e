"""Check that a step consists of exactly the expected types (rule N1).

Examples of cheats: a gradient is a tensor subclass that computes only the elements read; the
optimizer state is a dict that tells the plugin about reads; a global hook changes every model.
The types are compared in the pause of each step and after each optimizer step.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, partialmethod
from operator import attrgetter, is_
from pathlib import Path
from socket import socket
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.nn.modules import module as module_hooks
from torch.optim import SGD, AdamW, Optimizer

from llmb.observe.callables import functions
from llmb.observe.executed_code import compiled, is_same, parts_of
from llmb.observe.noise import strange_modes
from llmb.observe.optimizer import hook_tables_of
from llmb.observe.origins import UNKNOWN, CodeOrigin, Origins
from llmb.observe.pause_path import Changed, comparison, kernels
from llmb.observe.plain_tensors import PlainTensors, strange_keys
from llmb.records.evidence import Origin, Stranger
from llmb.records.redact import redact_text

#: The tables of torch's hooks that are called for every module.
_GLOBAL_HOOKS = tuple(
    table
    for name, table in vars(module_hooks).items()
    if name.startswith("_global_") and isinstance(table, dict)
)
#: The list that the collector itself keeps: the name in ``gc`` can be given another list.
_CALLBACKS = gc.callbacks
_LONGEST = 200  # characters of a name
_MOST_STRANGERS = 100  # reported at most
#: The most trusted first.
_TRUST: tuple[Origin, ...] = (
    "python",
    "llmb",
    "needed",
    "library",
    "other",
    "system",
    "compiler",
    "plugin",
    "unknown",
)
#: Base classes of known origin, not searched again: N1 compares all methods of the classes.
_EVERYBODYS = frozenset((*nn.Parameter.__mro__, dict, list, defaultdict, Optimizer))


#: Attributes of an optimizer that a pause reads. torch's classes have none of the names.
_OF_OPTIMIZER = (
    *("param_groups", "state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)

#: Takes the full name, value and code of a replacement.
_Stands = Callable[[str, object, object], bool]
_IN_PAUSE = "what the pause of a step calls"
_OF_THREAD = "torch's state of the thread"


@dataclass(slots=True)
class _Met:
    """An unexpected object: the first step with the object, and the number of looks."""

    what: str
    value: object
    step: int
    looks: int = 0


class _Shards:
    """Torch's DTensor, and the functions that DTensor calls for operators, before any plugin."""

    def __init__(self) -> None:
        # Imported by ranks alone: 0.2 s.
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel.loss import customized_loss_ops

        self.kind: Any = DTensor
        self._dispatcher = self.kind._op_dispatcher
        self._handlers = self._dispatcher._custom_op_handlers
        #: With those that torch's ``loss_parallel`` adds during a step (``--loss-parallel``).
        self._known = {**self._handlers, **customized_loss_ops}

    def strange(self) -> Iterator[object]:
        """Yield functions, or classes of tables, that stand in place of torch's own."""
        dispatcher = self.kind._op_dispatcher
        if dispatcher is not self._dispatcher:
            yield type(dispatcher)
        elif dispatcher._custom_op_handlers is not self._handlers:
            yield type(dispatcher._custom_op_handlers)
        for operator, handler in self._handlers.items():
            if self._known.get(operator) is not handler:
                yield handler


class Exactness:
    """Compares the types of all objects that a step consists of.

    Create the object before any code of the plugin is loaded, and after torch has wrapped the steps
    of torch's optimizers (``namespace.settle``). Example: a look at 111 parameters with gradients
    and moments takes 0.1 ms.
    """

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = (
        *("_files", "_held", "_in_pauses", "_keys", "_optimizer", "_other_kernels"),
        *("_parameters", "_plain"),
        *("_seen", "_shards", "_signals", "_standing", "_steps", "_there", "compare", "see"),
    )

    def __init__(self, modules: Collection[ModuleType] = (), *, ranks: bool = False) -> None:
        """Record the callbacks that Python and torch call by themselves already.

        ``modules`` of llmb take part in each pause, besides those that ``comparison`` knows;
        ``ranks``: the process is one of several ranks.
        """
        self._signals = sorted(signal.valid_signals())
        self._shards = _Shards() if ranks else None
        self._plain = PlainTensors()
        #: References are held, to prevent reuse of an ``id``.
        self._there = [value for _, value in self._called_by_themselves()]
        self._steps = {kind: kind.step for kind in (AdamW, SGD)}
        #: Methods as they are before any code of the plugin: a method that a plugin puts into the
        #: class later is not called.
        self.see = self.look
        self._other_kernels = kernels()
        #: Step, functions in the place of functions that the pause calls, and other kernels.
        self._in_pauses: list[tuple[int, list[Changed], list[tuple[str, str]]]] = []
        #: Full name, object of llmb, reader of an attribute, and value of the attribute.
        self._held: list[tuple[str, object, attrgetter[object], object]] = []
        #: Full name of a socket, its number, and device and inode of the open file.
        self._files: list[tuple[str, int, tuple[int, int]]] = []
        before, all_names = (comparison(modules, ranks=ranks, reads=r) for r in (False, True))
        self.compare = self._comparing(before, all_names)
        #: Kernels that stand at the end: the comparison of all kernels reports them.
        self._standing: list[tuple[str, str]] | None = None
        self._parameters: list[nn.Parameter] = []
        self._optimizer: Optimizer | None = None
        self._seen: dict[tuple[str, int], _Met] = {}
        #: Strange dispatch keys of the thread.
        self._keys: dict[str, _Met] = {}

    def watch(self, optimizer: Optimizer) -> None:
        """Check ``optimizer``, which has just been built, and all its parameters from now on."""
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def accept(self, tensor: Tensor) -> None:
        """Accept tensors like ``tensor`` of llmb, which lies on the device of the run."""
        self._plain.accept(tensor)

    def hold(self, *holders: object) -> None:
        """Compare in each pause the attributes of ``holders`` that llmb calls, and their objects.

        ``holders`` are objects of llmb with slots. Example: a plugin that finds the stream puts
        another channel into the stream, and the channel tells which elements will be read. Another
        example: ``os.dup2`` puts another file under the number of the channel's socket.
        """
        for holder in holders:
            kind = type(holder)
            for name in (slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())):
                value = getattr(holder, name, None)
                is_llmbs = type(value).__module__.partition(".")[0] == "llmb"
                if is_llmbs or callable(value) or isinstance(value, socket):
                    full = f"{kind.__module__}.{kind.__qualname__}.{name}"
                    self._held.append((full, holder, attrgetter(name), value))
                if isinstance(value, socket):
                    file = os.fstat(value.fileno())
                    self._files.append((full, value.fileno(), (file.st_dev, file.st_ino)))

    def look(self, step: int, *results: Tensor) -> None:
        """Check all objects of the present ``step``, counted from 0.

        ``results`` are the loss, or the logits and the drawn tokens; empty after the optimizer
        step.
        """
        for result in results:
            self._look_at_tensor("result of the model", result, Tensor, step)
        if keys := strange_keys():
            self._keys.setdefault(keys, _Met(_OF_THREAD, keys, step)).looks += 1
        if self._optimizer is not None:
            self._look_at(self._optimizer, step)
        for what, value in self._called_by_themselves():
            if not any(value is known for known in self._there):
                self._note(what, value, step)

    def _comparing(
        self, before: Callable[[], list[Changed]], replaced: Callable[[], list[Changed]]
    ) -> Callable[..., None]:
        """Return a function that compares all that the pause of a step calls.

        The function takes the number of the step, and calls no method: a plugin could replace the
        method, or exchange the code. Call the function before any other function of a pause, where
        ``reads`` is False because nothing is read yet, and once more right before the reading.
        """
        in_pauses, other_kernels, held = self._in_pauses, self._other_kernels, self._held
        files, status = self._files, os.fstat

        def compare(step: int, *, reads: bool = True) -> None:
            changed, tables = (replaced(), other_kernels()) if reads else (before(), [])
            for name, holder, read, value in held:
                if read(holder) is not value:
                    changed.append((name, read(holder), None))
            for name, number, known in files:
                if ((file := status(number)).st_dev, file.st_ino) != known:
                    changed.append((name, socket, None))
            if changed or tables:
                in_pauses.append((step, changed, tables))

        return compare

    def close(self) -> None:
        """Note the kernels that stand at the end of the stream, just when all are compared."""
        self._standing = self._other_kernels(every=True)

    def _look_at(self, optimizer: Optimizer, step: int) -> None:
        if self._shards is not None:
            for strange in self._shards.strange():
                self._note("function of DTensor for an operator", strange, step)
        for parameter in self._parameters:
            self._look_at_tensor("parameter", parameter, nn.Parameter, step)
            if parameter.grad is not None:
                self._look_at_tensor("gradient", parameter.grad, Tensor, step)
        kind = type(optimizer)
        self._look_at_names("optimizer", vars(optimizer), step)
        for name in _OF_OPTIMIZER:
            if hasattr(kind, name):  # Python would ask a property of the class first
                self._note(f"attribute {name} of the optimizer's class", kind, step)
        if kind not in self._steps:
            self._note("optimizer", kind, step)
        elif kind.step is not self._steps[kind]:
            self._note("step of the optimizer", kind.step, step)
        elif "step" in vars(optimizer):
            self._note("step of the optimizer", vars(optimizer)["step"], step)
        for table in hook_tables_of(optimizer):
            if type(table) is not OrderedDict:
                self._note("table of the optimizer's hooks", type(table), step)
                continue
            for hook in table.values():
                self._note("hook of the optimizer", hook, step)
        self._look_at_groups(optimizer, step)
        if type(optimizer.state) is not defaultdict:  # methods of a subclass would notice the look
            self._note("state of the optimizer", type(optimizer.state), step)
            return
        known = {id(parameter) for parameter in self._parameters}
        for key, values in optimizer.state.items():
            if id(key) not in known:  # llmb looks parameters up, which compares keys
                self._note("key of the optimizer's state", type(key), step)
            if type(values) is not dict:
                self._note("state of a parameter", type(values), step)
                continue
            self._look_at_names("state of a parameter", values, step)
            for value in values.values():
                self._look_at_tensor("moment of a parameter", value, Tensor, step)

    def _look_at_groups(self, optimizer: Optimizer, step: int) -> None:
        groups, stepped = optimizer.param_groups, list[nn.Parameter]()
        if type(groups) is not list:
            self._note("list of parameter groups", type(groups), step)
            return
        for group in groups:
            if type(group) is not dict:
                self._note("parameter group", type(group), step)
                return
            self._look_at_names("parameter group", group, step)
            # The ledger sets the rate: the end of the value before would call its finalizer.
            if type(group["lr"]) is not float:
                self._note("learning rate", type(group["lr"]), step)
            if type(group["params"]) is not list:
                self._note("list of parameters", type(group["params"]), step)
                return
            stepped += group["params"]
        if len(stepped) != len(self._parameters) or not all(map(is_, stepped, self._parameters)):
            self._note("list of parameters that was exchanged", type(groups), step)

    def _called_by_themselves(self) -> Iterator[tuple[str, object]]:
        """Yield the callbacks that Python or torch call by themselves, such as tracers."""
        for table in _GLOBAL_HOOKS:
            for hook in table.values():
                yield "hook of all modules", hook
        for mode in strange_modes():
            yield "mode of torch", type(mode)
        for tracer in (sys.gettrace(), sys.getprofile()):
            if tracer is not None:
                yield "tracer", tracer
        for callback in _CALLBACKS:
            yield "callback of the garbage collector", callback
        frames = get_eval_frame_callback()
        if callable(frames):
            yield "callback of torch for frames", frames
        for number in self._signals:
            handler = signal.getsignal(number)
            if callable(handler):
                yield "signal handler", handler

    def _look_at_names(self, what: str, table: Mapping[str, object], step: int) -> None:
        """Note each key of another class than ``str``: Python may ask the key when it looks up."""
        for name in table:
            if type(name) is not str:
                self._note(f"key of the {what}", type(name), step)

    def _look_at_tensor(self, what: str, value: Tensor, kind: type, step: int) -> None:
        if type(value) is kind:
            self._note_wrapper(what, value, step)
        else:
            self._note_tensor(what, value, step)
        own = value.__dict__ if issubclass(type(value), Tensor) else None
        if own:
            self._look_at_names(what, own, step)
            for name in own:  # Python finds the tensor's own attribute before the class's method
                if type(name) is str and hasattr(type(value), name):
                    self._note(f"attribute {name} of a {what}", type(own[name]), step)

    def _note_wrapper(self, what: str, value: Tensor, step: int) -> None:
        """Note a tensor of torch's exact class that runs other code when read."""
        if not self._plain.has(value):
            self._note(f"wrapped {what}", type(value), step)

    def _note_tensor(self, what: str, value: object, step: int) -> None:
        """Note the class of ``value``, and the class of the local part of a DTensor.

        ``what`` is the role of ``value``, such as ``gradient``. N1 accepts no DTensor of a process
        that is no rank: only ranks know torch's own DTensor from before the plugin.
        """
        kind = type(value)
        if self._shards is None and kind.__qualname__ == "DTensor":
            what = f"{what} of a single rank"
        self._note(what, kind, step)
        if self._shards is not None and kind is self._shards.kind:
            local = value._local_tensor  # type: ignore[attr-defined]
            if type(local) not in (Tensor, nn.Parameter):
                self._note(f"local part of a {what}", type(local), step)
            else:
                self._note_wrapper(f"local part of a {what}", local, step)

    def _note(self, what: str, value: object, step: int) -> None:
        key = what, id(value)
        if key not in self._seen:
            if len(self._seen) == _MOST_STRANGERS:
                return
            self._seen[key] = _Met(what, value, step)
        self._seen[key].looks += 1

    def strangers(self, module: str, distribution: str, stands: _Stands) -> tuple[Stranger, ...]:
        """Return unexpected objects; ``module`` and ``distribution`` name the plugin.

        ``stands`` tells whether the comparison of all callables found a replacement at the end
        (``NamespaceWatch.stands``). A library's replacement that stands is left to that comparison.
        Example: the import of IPEX replaces ``torch.Tensor.numpy``. A plugin's own replacement of a
        function that a pause calls is returned, even if the plugin declares the replacement.
        """
        origins = Origins(module, distribution)
        judged = dict[tuple[str, int, int], bool]()  # by identity: a value may have no hash
        for step, changed, _ in self._in_pauses:
            for name, value, code in changed:
                key = name, id(value), id(code)
                if key not in judged:
                    is_a_librarys = owner_of(value, origins).origin == "library"
                    judged[key] = is_a_librarys and stands(name, value, code)
                if not judged[key]:
                    self._note(_IN_PAUSE, value, step)
        found = [*self._strange_kernels(), *map(_unowned, self._keys.items())]
        self._in_pauses.clear()
        for seen in self._seen.values():
            place = owner_of(seen.value, origins)
            found.append(
                Stranger(
                    what=seen.what,
                    type=redact_text(_named(seen.value))[:_LONGEST],
                    origin=place.origin,
                    distribution=place.distribution,
                    first_step=seen.step,
                    looks=seen.looks,
                )
            )
        return tuple(found)

    def _strange_kernels(self) -> list[Stranger]:
        """Return the operators of a pause with kernels that were taken back before the end."""
        standing = self._other_kernels(every=True) if self._standing is None else self._standing
        met = dict[str, _Met]()
        for step, _, kernels_then in self._in_pauses:
            for operator, table in kernels_then:
                if (operator, table) not in standing:
                    met.setdefault(operator, _Met(_IN_PAUSE, table, step)).looks += 1
        return [_unowned((f"kernel of {operator}", one)) for operator, one in met.items()]


def _unowned(met: tuple[str, _Met]) -> Stranger:
    """Return the report of something that no package can be asked about, by name."""
    name, one = met
    return Stranger(
        what=one.what,
        type=name,
        origin="unknown",
        distribution=None,
        first_step=one.step,
        looks=one.looks,
    )


def _named(value: object) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', '?')}"


def owner_of(value: object, origins: Origins) -> CodeOrigin:
    """Return the package that a class or a callable comes from.

    With parts from several packages, the least trusted package counts. A class can lie about the
    defining module, and code about the source file: the module must hold the class and the names
    of the function, and the text of the file must compile to the code. Example: a method compiled
    under the name of a file of torch makes the class "unknown".
    """
    made_of = list(functions(value))
    kinds = () if made_of else _behind(value if isinstance(value, type) else type(value))
    places = []
    for kind in kinds:
        places.append(origins.of_module(kind.__module__) if _is_held(kind) else UNKNOWN)
        inside = (part for member in vars(kind).values() for part in _inside(member))
        made_of += (function for part in inside for function in functions(part))
    places += (_of_function(function, origins) for function in made_of)
    return max(places, key=lambda place: _TRUST.index(place.origin), default=UNKNOWN)


def _behind(kind: type) -> Iterator[type]:
    """Yield ``kind``, all bases and metaclasses, and the classes of objects that act as methods.

    A class of nothing but such objects has no code of its own. Example: a class attribute
    ``__torch_function__`` whose value is an object that can be called.
    """
    waiting, seen = [kind], {*_EVERYBODYS, type, object}
    while waiting:
        for one in waiting.pop().__mro__:
            if one in seen:
                continue
            seen.add(one)
            yield one
            acting = (part for member in vars(one).values() for part in _inside(member))
            waiting += (type(one), *(type(part) for part in acting if _acts(part)))


def _inside(member: object) -> Iterator[object]:
    """Yield ``member`` of a class, or what it wraps. Example: the three functions of a property."""
    inside: tuple[object, ...] = ()
    if isinstance(member, property):
        inside = member.fget, member.fset, member.fdel
    elif isinstance(member, (staticmethod, classmethod, MethodType)):
        inside = member.__func__, getattr(member, "__self__", None)
    elif isinstance(member, (partial, partialmethod)):
        inside = member.func, *member.args, *member.keywords.values()
    if not inside:
        yield member
    for one in inside:
        yield from _inside(one)


def _acts(part: object) -> bool:
    """Tell whether ``part`` acts as a method, and is neither a class nor one of Python's own."""
    kind = type(part)
    is_pythons = kind.__module__ == "builtins" or isinstance(part, type)
    return not is_pythons and (callable(part) or hasattr(kind, "__get__"))


def _of_function(function: FunctionType, origins: Origins) -> CodeOrigin:
    code, names = function.__code__, function.__globals__
    file = Path(code.co_filename)
    shown = compiled(file)
    place = origins.of(str(file))
    if place.origin == "plugin":
        return place
    # With a dict of the plugin's in place of the module's, code of torch calls other functions.
    module = sys.modules.get(str(names.get("__name__")))
    is_modules = module is not None and vars(module) is names
    is_shown = shown is not None and any(is_same(code, part) for part in parts_of(shown))
    return place if is_modules and is_shown else UNKNOWN


def _is_held(kind: type) -> bool:
    """Tell whether the module that a class names really holds the class."""
    there: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        there = getattr(there, name, None)
    return there is kind
