"""The short-lived process that measures a device's peak rates: no model, no record.

The process holds the plugin's backend and environment. ``llmb.processes.honest_run`` makes the
honest run.
"""

from __future__ import annotations

from llmb import workloads
from llmb.config import Mode
from llmb.errors import RunFailedError
from llmb.measure.ceiling import measure_ceiling
from llmb.measure.rates import measure_rates
from llmb.plugin.builtin.host import keep_freed_memory
from llmb.plugin.manager import Plugin
from llmb.records.ceiling import Ceiling
from llmb.records.run_record import Rates
from llmb.wire.channel import Channel, serve
from llmb.wire.measurements import Calibration, CalibrationOrder, MeasuredRates, RatesOrder
from llmb.workloads.arithmetic import gemms


def measure(channel: Channel) -> None:
    """Answer one order: the ceilings of a run, or the processor's rates for an estimate.

    Raises:
        RunFailedError: another message came.
    """
    order = channel.receive()
    if isinstance(order, CalibrationOrder):
        channel.send(Calibration(ceiling=ceiling(order)))
    elif isinstance(order, RatesOrder):
        channel.send(MeasuredRates(rates=rates(order)))
    else:
        raise RunFailedError(f"{order} came where an order to measure was due")


def ceiling(order: CalibrationOrder) -> Ceiling:
    """Return the peak rates that the device of ``order`` attains."""
    config = order.config
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    plugin.set_environment(config)
    workload = workloads.of(config)
    tokens = workload.tokens_per_step(config.micro_batch_size)
    if config.mode is Mode.GENERATE:  # one token of each sequence at a time
        tokens = config.batch_size
    return measure_ceiling(backend, config, workload.shape, tokens, order.seconds)


def rates(order: RatesOrder) -> Rates:
    """Return the processor's rates on the model's widest matrix product, the head left out."""
    config = order.config
    Plugin(config.plugin).set_environment(config)
    keep_freed_memory()  # as a run does
    workload = workloads.of(config)
    widest = max(gemms(workload.shape)[:-1], key=lambda gemm: gemm.k * gemm.n)
    return measure_rates(widest, workload.tokens_per_step(config.micro_batch_size), order.dtypes)


if __name__ == "__main__":
    serve(measure)
