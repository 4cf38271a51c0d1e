"""The short-lived process that asks one plugin for devices, formats and options; runs no model."""

from __future__ import annotations

import torch

from llmb.config import (
    AUTO_DEVICE,
    FP32,
    MOST_WARMUP_STEPS,
    OFFICIAL_TIMED_STEPS,
    Mode,
    Precision,
    Refused,
    RunConfig,
    RunRequest,
)
from llmb.errors import UnavailableError
from llmb.plugin import discovery
from llmb.plugin.answers import Answers, check_dtypes
from llmb.plugin.faults import PluginFaultError
from llmb.plugin.manager import Plugin
from llmb.plugin.options import PluginOption, resolve
from llmb.records.lacks import Lacks
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Offer, OfferOrder, Resolved, Terms

_NO_FP32 = Refused(
    name=FP32.name, reason="the device multiplies float32 matrices in a narrower format"
)


def answer(channel: Channel) -> None:
    """Answer one order, then answer the terms of each run that chooses the plugin."""
    order = channel.expect(OfferOrder)
    plugin = Plugin(order.plugin)
    discovery.source_root(plugin.module_name)  # no run without sources to show: fail early
    options = plugin.options()
    config = _provisional(order, options)
    try:
        backend = _usable_backend(plugin, config)
    except PluginFaultError:  # the plugin is broken, the machine lacks nothing
        raise
    except UnavailableError as error:
        channel.send(_offer(plugin, options, config, reason=str(error)))
        return
    channel.send(_offer(plugin, options, config, backend=backend))

    while True:  # for several sizes, as long as the supervisor asks
        channel.send(_terms(plugin, backend, channel.expect(Resolved).config))


def _terms(plugin: Plugin, backend: Answers, config: RunConfig) -> Terms:
    return Terms(
        environment=plugin.environment_variables(config),
        # A lazy device, with separate programs for audited steps, gets one more.
        warmup_steps=min(
            MOST_WARMUP_STEPS, plugin.warmup_steps(config) + backend.lacks.eager_kernels
        ),
        facts={
            **discovery.torch_extensions(),
            **backend.versions(),
            **plugin.describe_system(config),
        },
        peak=backend.peak_flops(config.precision.name),
    )


def _provisional(order: OfferOrder, options: tuple[PluginOption, ...]) -> RunConfig:
    request: RunRequest = order.request
    return RunConfig(
        workload=request.workload,
        mode=request.mode or Mode.TRAIN,
        executor=request.executor,
        compile_mode=request.compile_mode,
        plugin=order.plugin,
        plugin_options=resolve(order.plugin, options, request.plugin_options),
        device=request.device or AUTO_DEVICE,
        precision=FP32,
        batch_size=request.batch_size if isinstance(request.batch_size, int) else 1,
        seed=0,
        warmup_steps=request.warmup_steps or 1,
        timed_steps=request.timed_steps or OFFICIAL_TIMED_STEPS,
        repeats=request.repeats,
        shape_overrides=request.shape_overrides,
    )


def _usable_backend(plugin: Plugin, config: RunConfig) -> Answers:
    backend = Answers(plugin.name, plugin.backend(config))
    wanted = config.device.partition(":")[0]
    if wanted not in (AUTO_DEVICE, backend.device_type):
        raise UnavailableError(f"it drives {backend.device_type!r}, not {config.device!r}")
    if not backend.is_available():
        raise UnavailableError(f"no {backend.device_type} device was found")
    count = len(backend.devices())
    numbered = [f"{backend.device_type}:{number}" for number in range(count)]
    if config.device not in (AUTO_DEVICE, backend.device_type, *numbered):
        raise UnavailableError(
            f"device {config.device!r}: there are {count} {wanted} devices, numbered from 0"
        )
    return backend


def _offer(
    plugin: Plugin,
    options: tuple[PluginOption, ...],
    config: RunConfig,
    *,
    backend: Answers | None = None,
    reason: str | None = None,
) -> Offer:
    device = config.device
    if backend is not None and device == AUTO_DEVICE:
        device = backend.device_type
    config = config.model_copy(update={"device": device})
    formats = plugin.precisions(config) if backend else ()
    check_dtypes(plugin.name, formats, _dtypes())
    lacks = backend.lacks if backend else Lacks()
    if lacks.full_float32_products:  # products called FP32 would be measured as a narrower format
        formats = tuple(_NO_FP32 if offered.name == FP32.name else offered for offered in formats)
    if backend is not None:
        backend.check_energy()
    return Offer(
        plugin=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        available=backend is not None,
        reason=reason,
        device=device,
        step_clock=backend.step_clock if backend else "host",
        devices=backend.devices() if backend else (),
        available_memory_bytes=backend.available_bytes() if backend else None,
        options=dict(config.plugin_options),
        option_help={option.name: option.help for option in options},
        option_choices={option.name: option.choices for option in options if option.choices},
        precisions=tuple(p for p in formats if isinstance(p, Precision)),
        refused=tuple(p for p in formats if isinstance(p, Refused)),
        torch_version=str(torch.__version__),
        lacks=lacks,
    )


def _dtypes() -> list[str]:
    return [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)]


if __name__ == "__main__":
    serve(answer)
