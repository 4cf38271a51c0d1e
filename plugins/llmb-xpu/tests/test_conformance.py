"""llmb's own checks of a plugin, inherited in full, on the CPU with the extension."""

from __future__ import annotations

import pytest

from llmb.sdk.conformance import PluginConformance
from tests import needs

needs.package("intel_extension_for_pytorch")
pytestmark = pytest.mark.slow


@pytest.mark.xdist_group("conformance")  # the checks are done once for a process
class TestXpu(PluginConformance):
    plugin_name = "xpu"
    device = "cpu"
