"""Telemetry takes 47 ms at the first fences: the time is the plugin's own, and moves no stamp."""

import time

from llmb.plugin import hookimpl

asked = []


@hookimpl
def llmb_telemetry():
    asked.append(1)
    if len(asked) < 3:
        time.sleep(0.047)
    return {"power_w": 1.0}
