"""Checks of a plugin's hooks that need no device."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from llmb.config import environment
from llmb.errors import LlmbError, UsageError
from llmb.plugin import PluginOption, discovery, hookspecs
from llmb.sdk.report import CheckError, SkipError
from llmb.sdk.subject import Subject

T = TypeVar("T")
#: Two names with little in common: no single reason can hold for both.
_THREADS_FAR_APART = ("Thread-1 (run)", "power sensor")
_FAR_APART = ("torch.nn.functional.linear", "torch.Tensor.numpy")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def loads(subject: Subject) -> str:
    """Load the plugin; loading refuses hooks and arguments that llmb does not have."""
    plugin = subject.plugin
    return f"{plugin.module_name} of {plugin.distribution} {plugin.version}"


def marked(subject: Subject) -> str:
    """Look for functions with the name of a hook but without the mark: llmb never calls them."""
    module = sys.modules[subject.plugin.module_name]
    mark = f"{hookspecs.PROJECT}_impl"
    named = {
        name: value
        for name, value in vars(module).items()
        if name.startswith("llmb_") and inspect.isfunction(value)
    }
    forgotten = sorted(name for name, value in named.items() if not hasattr(value, mark))
    if forgotten:
        raise CheckError(f"{', '.join(forgotten)} will never be called: put @hookimpl above it")
    return f"{len(named)} hooks"


def sources(subject: Subject) -> str:
    """Find the folder with the source files that a run directory shows."""
    root = discovery.source_root(subject.plugin.module_name)
    return f"package {root.package}"


def options(subject: Subject) -> str | None:
    """Check every option against its own type, choices and minimum."""
    offered = subject.plugin.options()
    names = [option.name for option in offered]
    for option in offered:
        if not _OPTION_NAME.fullmatch(option.name):
            raise CheckError(
                f"option {option.name!r}: use lower-case letters, digits, - and _, a letter first"
            )
        if names.count(option.name) > 1:
            raise CheckError(f"option {option.name!r} is offered twice: rename one")
        if not option.help.strip():
            raise CheckError(f"option {option.name!r} has no help text: say what it does")
        for value in (option.default, *option.choices):
            _stands_for_itself(option, value)
    return ", ".join(names) or "the plugin has none"


def _stands_for_itself(option: PluginOption, value: object) -> None:
    try:
        parsed = option.parse(str(value))
    except UsageError as error:
        raise CheckError(
            f"option {option.name!r} refuses its own default or choice: {error}"
        ) from None
    if parsed != value or type(parsed) is not type(value):
        raise CheckError(
            f"option {option.name!r}: {value!r} is no {option.type}: typed, it becomes {parsed!r}"
        )


def environment_variables(subject: Subject) -> str:
    """Ask twice for the same run; the answers must agree."""
    plugin, config = subject.plugin, subject.config
    first, second = (
        _asked(subject, lambda: plugin.environment_variables(config)) for _ in range(2)
    )
    if first != second:
        changed = sorted(n for n in {*first, *second} if first.get(n) != second.get(n))
        raise CheckError(
            f"llmb_environment_variables returned other values of {', '.join(changed)} the second "
            "time: a run that is done again must get the same ones"
        )
    return ", ".join(f"{name}={value}" for name, value in sorted(first.items())) or "none"


def environment_takes_effect(subject: Subject) -> str:
    """Look for the variables in this process, which was started with the variables."""
    wanted, found = subject.order.environment, environment()
    if not wanted:
        raise SkipError("the plugin sets none for this run")
    _ = subject.plugin  # the import may change the variables, too
    for name, value in wanted.items():
        if found.get(name) != value:
            raise CheckError(
                f"{name} was set to {value!r} and is {found.get(name)!r} after the plugin was "
                "imported: something overwrites it"
            )
    return ", ".join(sorted(wanted))


def patches(subject: Subject) -> str:
    """Check every declared patch against the rules for declarations."""
    declared = _asked(subject, subject.plugin.patches)
    for patch in declared:
        if not patch.target.strip() or not patch.reason.strip():
            raise CheckError(f"the patch of {patch.target!r} needs a target and a reason")
        if all(fnmatchcase(name, patch.target) for name in _FAR_APART):
            raise CheckError(f"patch {patch.target!r} is all of torch: name what is replaced")
    return ", ".join(patch.target for patch in declared[:5]) or "none declared"


def helpers(subject: Subject) -> str:
    """Check every declared helper thread against the rules for declarations."""
    declared = _asked(subject, subject.plugin.helpers)
    for helper in declared:
        if not helper.name.strip() or not helper.reason.strip():
            raise CheckError(f"the helper thread {helper.name!r} needs a name and a reason")
        if all(fnmatchcase(name, helper.name) for name in _THREADS_FAR_APART):
            raise CheckError(
                f"helper thread {helper.name!r} is every thread: name the one you keep"
            )
    return ", ".join(helper.name for helper in declared[:5]) or "none declared"


def _asked(subject: Subject, question: Callable[[], T]) -> T:
    """Return the answer; on an error load the backend (vendor's library), and ask again.

    Raises:
        SkipError: the hook fails, and no device is available here.
    """
    try:
        return question()
    except LlmbError:
        _ = subject.backend
    return question()


def native_libraries(subject: Subject) -> str:
    """Check every declared library on disk."""
    declared = _asked(subject, subject.plugin.native_libraries)
    for library in declared:
        if not Path(library.path).is_file():
            raise CheckError(
                f"native library {library.path!r} is not a file: declare where it lies"
            )
        if not library.licence.strip() or not library.where_to_get.strip():
            raise CheckError(
                f"native library {library.path!r} needs a licence and a place to get it"
            )
    return ", ".join(Path(library.path).name for library in declared) or "none declared"
