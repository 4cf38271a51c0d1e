"""The conformance kit: a vendor subclasses this pytest class and inherits every test.

::

    from llmb.sdk.conformance import PluginConformance

    class TestAcme(PluginConformance):
        plugin_name = "acme"

The plugin itself never enters pytest's process. For a test with a known failure, override the test
with ``@pytest.mark.xfail(reason="...")``; the test stays visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

import pytest

from llmb.sdk.catalogue import CHECKS, Check
from llmb.sdk.examine import LIMIT_S, examine
from llmb.sdk.report import CheckReport


def _test_of(check: Check) -> Callable[[PluginConformance], None]:
    def test(self: PluginConformance) -> None:
        outcome = self._report().outcome(check.id)
        if outcome.status == "skip":
            pytest.skip(outcome.message)
        if outcome.status == "fail":
            pytest.fail(f"{check.id}: {outcome.message}", pytrace=False)

    test.__name__ = check.test_name
    test.__qualname__ = f"PluginConformance.{check.test_name}"
    test.__doc__ = f"{check.title[0].upper()}{check.title[1:]}."
    return test


class PluginConformance:
    """Every check of a plugin as a test; subclass this class, and name the plugin."""

    #: Name of the installed plugin, as in ``llmb run --plugin``.
    plugin_name: ClassVar[str] = ""
    #: Device for the checks; None is the device the plugin prefers. Example: "xyz:0".
    device: ClassVar[str | None] = None
    #: Options as in ``llmb run -O name=value``.
    options: ClassVar[Mapping[str, str]] = {}
    #: Seconds until a silent check counts as hanging.
    limit_s: ClassVar[float] = LIMIT_S

    @classmethod
    @cache
    def _report(cls) -> CheckReport:
        """Run all checks, once per class."""
        return examine(cls.plugin_name, device=cls.device, options=cls.options, limit_s=cls.limit_s)


for _check in CHECKS:
    setattr(PluginConformance, _check.test_name, _test_of(_check))
