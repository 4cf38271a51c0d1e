"""The conformance kit: a class for pytest that a vendor subclasses and inherits every test from.

::

    from llmb.sdk.conformance import PluginConformance

    class TestAcme(PluginConformance):
        plugin_name = "acme"

The plugin itself never enters pytest's process. An inherited test cannot be deleted or overridden,
except with ``@pytest.mark.xfail(reason="...")`` above it: a known failure stays visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

import pytest

from llmb.sdk.catalogue import CHECKS, Check
from llmb.sdk.examine import LIMIT_S, examine
from llmb.sdk.report import CheckReport

_Test = Callable[..., None]
#: Marks that would keep a test from being counted.
_HIDING = ("skip", "skipif")


def _test_of(check: Check) -> _Test:
    def test(self: PluginConformance) -> None:
        outcome = _report_on(type(self)).outcome(check.id)
        if outcome.status == "skip":
            pytest.skip(outcome.message)
        if outcome.status == "fail":
            pytest.fail(f"{check.id}: {outcome.message}", pytrace=False)

    test.__name__ = check.test_name
    test.__qualname__ = f"PluginConformance.{check.test_name}"
    test.__doc__ = f"{check.title[0].upper()}{check.title[1:]}."
    return test


#: One test for each check: a check without a test cannot be.
_TESTS: Mapping[str, _Test] = {check.test_name: _test_of(check) for check in CHECKS}


class _Guard(type):
    """Keeps the inherited tests what they are, while a class is made and afterwards."""

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
        super().__init__(name, bases, body)
        if bases:
            _check_class(cls)

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "pytestmark":
            _check_marks(cls, value)
        elif name in _PROTECTED:
            raise TypeError(_refusal(cls, name))
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        if name in _PROTECTED:
            raise TypeError(_refusal(cls, name))
        super().__delattr__(name)


class PluginConformance(metaclass=_Guard):
    """Every check of a plugin as a test; subclass it, and name the plugin."""

    #: Name of the installed plugin, as in ``llmb run --plugin``.
    plugin_name: ClassVar[str] = ""
    #: Device to check it on; None is the one it prefers.
    device: ClassVar[str | None] = None
    #: Options as in ``llmb run -O name=value``.
    options: ClassVar[Mapping[str, str]] = {}
    #: Seconds after which a check is taken to hang.
    limit_s: ClassVar[float] = LIMIT_S


for _each, _test in _TESTS.items():
    type.__setattr__(PluginConformance, _each, _test)

_PROTECTED = frozenset({*_TESTS, "__test__"})


@cache
def _report_on(kit: type[PluginConformance]) -> CheckReport:
    """Do all checks, once for a class."""
    _check_class(kit)  # whatever was done to it since it was made
    return examine(kit.plugin_name, device=kit.device, options=kit.options, limit_s=kit.limit_s)


def _check_class(kit: type) -> None:
    """Refuse a class in which a test is missing, or is another one without a known reason.

    Raises:
        TypeError: says which test, and what to do instead.
    """
    for name, test in _TESTS.items():
        found = _resolved(kit, name)
        if found is not test and not _is_known_failure(found):
            raise TypeError(_refusal(kit, name))
        _check_marks(kit, getattr(found, "pytestmark", ()))
    _check_marks(kit, getattr(kit, "pytestmark", ()))
    if getattr(kit, "plugin_name", "") and getattr(kit, "__test__", True) is False:
        raise TypeError(f"{kit.__name__}.__test__ = False would delete every inherited test")


def _resolved(kit: type, name: str) -> object:
    """Return what ``kit`` or the first of its bases holds under ``name``, without binding it."""
    return next((vars(base)[name] for base in kit.__mro__ if name in vars(base)), None)


def _check_marks(kit: type, marks: object) -> None:
    for mark in marks if isinstance(marks, Iterable) else (marks,):
        if _name(mark) in _HIDING or (_name(mark) == "xfail" and not _reason(mark)):
            raise TypeError(
                f"{kit.__name__}: the mark {_name(mark)!r} would hide inherited tests; mark "
                'the one that is known to fail with @pytest.mark.xfail(reason="...")'
            )


def _is_known_failure(test: object) -> bool:
    marks = getattr(test, "pytestmark", ())
    return callable(test) and any(_name(m) == "xfail" and _reason(m) for m in marks)


def _reason(mark: Any) -> str:
    """Return why a test is expected to fail; nothing where the mark holds on a condition only."""
    mark = getattr(mark, "mark", mark)
    return "" if mark.args or "condition" in mark.kwargs else str(mark.kwargs.get("reason") or "")


def _name(mark: object) -> str:
    return str(getattr(mark, "name", ""))


def _refusal(kit: type, name: str) -> str:
    return (
        f"{kit.__name__}.{name} is not the inherited one: a conformance test may be neither "
        'overridden nor deleted; if it is known to fail, put @pytest.mark.xfail(reason="...") '
        "above a test of this name"
    )
