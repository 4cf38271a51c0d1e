"""llmb's kit for vendors, on the host's processor."""

from __future__ import annotations

from llmb.sdk.conformance import PluginConformance


class TestXla(PluginConformance):
    plugin_name = "xla"
