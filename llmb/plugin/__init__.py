"""The interface for plugins of hardware vendors.

A plugin module imports every name of the interface from here::

    from llmb.plugin import hookimpl

    @hookimpl
    def llmb_post_process_model(model, config): ...
"""

from llmb.plugin.backend import Backend, DeviceMemory, EnergyReading, Peak
from llmb.plugin.hookspecs import Kind, ParameterView, hookimpl
from llmb.plugin.native import NativeLibrary
from llmb.plugin.options import PluginOption
from llmb.records.lacks import Lacks
from llmb.records.run_record import DeclaredHelper, DeclaredPatch, StepClock
from llmb.records.system import Device

__all__ = [
    "Backend",
    "DeclaredHelper",
    "DeclaredPatch",
    "Device",
    "DeviceMemory",
    "EnergyReading",
    "Kind",
    "Lacks",
    "NativeLibrary",
    "ParameterView",
    "Peak",
    "PluginOption",
    "StepClock",
    "hookimpl",
]
