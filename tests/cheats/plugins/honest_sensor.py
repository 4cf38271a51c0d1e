"""A declared thread reads a sensor beside the steps, and telemetry calls its library."""

import ctypes
import threading

from llmb.plugin import DeclaredHelper, hookimpl

readings = [0.0]


def sample():
    while True:
        readings.append(readings.pop() + 1.0)
        threading.Event().wait(0.05)


@hookimpl
def llmb_helpers():
    reason = "the sensor has no counter of energy: its power is added up"
    return [DeclaredHelper(name="power sensor", reason=reason, cpu_share=0.02)]


@hookimpl
def llmb_post_process_model(model):
    threading.Thread(target=sample, name="power sensor", daemon=True).start()
    return model


@hookimpl
def llmb_telemetry():
    size = ctypes.c_int(4)
    ctypes.addressof(size)
    return {"power_w": readings[-1]}
