"""The short-lived process that measures what the device attains; no model, no post-processing."""

from __future__ import annotations

from llmb import workloads
from llmb.measure.ceiling import measure_ceiling
from llmb.plugin.manager import Plugin
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Calibration, CalibrationOrder


def calibrate(channel: Channel) -> None:
    """Answer one calibration order."""
    order = channel.expect(CalibrationOrder)
    config = order.config
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    plugin.set_environment(config)
    workload = workloads.find(config.workload, config.shape_overrides)
    tokens = workload.tokens_per_step(config.batch_size)
    ceiling = measure_ceiling(backend, config, workload.shape, tokens, order.seconds)
    channel.send(Calibration(ceiling=ceiling))


if __name__ == "__main__":
    serve(calibrate)
