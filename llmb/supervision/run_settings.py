"""The settings of a run as options of ``llmb run``: for ``config.toml`` and for ``llmb show``.

Seed and nonce are draws, not settings. ``config.toml`` is written before the timed window and holds
neither: the seed on disk would tell plugin code which tokens come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from llmb.config import RunConfig
from llmb.workloads import WORKLOADS

#: Name of the settings in a run directory; not part of a bundle, whose record has the same facts.
CONFIG = "config.toml"
SettingValue = str | int | bool | list[str]

_HEAD = """\
# Settings of this run. To make a run with the same settings, and with draws of its own:
#   llmb run --config config.toml
# Seed and nonce are draws, not settings: record.json has both.
[run]
"""


def settings_of(config: RunConfig, seed: int | None = None) -> dict[str, SettingValue]:
    """Return option of ``llmb run``, without dashes -> value, in the order of a command line.

    True and False are flags, a list is a repeated option. ``seed`` is an option if not None.
    Example: ``{"workload": "llama-1.4b", "dynamic": True, "plugin-option": ["threads=4"]}``.
    """
    mesh = config.parallelism
    found: dict[str, SettingValue] = {}
    if _may_be_mixed(config):
        found["mixed-precision"] = config.mixed_precision
    flags = {
        "dynamic": config.dynamic,
        "constant-rate": config.constant_rate,
        "sequence-parallel": mesh.sequence_parallel,
        "loss-parallel": mesh.loss_parallel,
    }
    found |= {name: True for name, is_set in flags.items() if is_set}
    found |= {
        "workload": _workload(config),
        "mode": config.mode.value,
        "plugin": config.plugin,
        "device": config.device,
        "precision": config.precision.name,
        "batch-size": config.batch_size,
        **_ranks(config),
        **_more(config),
        **({} if seed is None else {"seed": seed}),
        "warmup-steps": config.warmup_steps,
        "timed-steps": config.timed_steps,
        "repeats": config.repeats,
        "audit": config.audit.value,
    }
    found |= {name.replace("_", "-"): size for name, size in config.shape_overrides.items()}
    if config.plugin_options:
        found["plugin-option"] = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in config.plugin_options.items()
        ]
    return found


def as_toml(settings: Mapping[str, SettingValue]) -> bytes:
    """Return ``settings`` as the text of ``config.toml``."""
    lines = (f"{name} = {_toml(value)}\n" for name, value in settings.items())
    return (_HEAD + "".join(lines)).encode()


def _toml(value: SettingValue) -> str:
    """Return a value in TOML: JSON without escapes above U+FFFF, and with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _ranks(config: RunConfig) -> dict[str, SettingValue]:
    """Return the options for as many ranks on one machine, with the same layout."""
    mesh = config.parallelism
    if mesh.world_size == 1:
        return {}
    sizes = {name: getattr(mesh, name) for name in ("dp_replicate", "dp_shard", "tp", "pp")}
    found: dict[str, SettingValue] = {"nproc": mesh.world_size}
    found |= {name.replace("_", "-"): size for name, size in sizes.items() if size > 1}
    if mesh.dp_shard > 1 and not mesh.reshard_after_forward:
        found["zero"] = 2
    return found | ({"schedule": mesh.schedule} if mesh.pp > 1 else {})


def _more(config: RunConfig) -> dict[str, SettingValue]:
    """Return the options with values other than the defaults."""
    found: dict[str, SettingValue] = {}
    data = config.data
    if config.accumulate > 1 or config.parallelism.pp > 1:
        found["accumulate"] = config.accumulate
    if config.executor != "eager":
        found["executor"] = config.executor
    if config.compile_mode != "default":
        found["compile-mode"] = config.compile_mode
    others: tuple[tuple[str, SettingValue | None], ...] = (
        ("sac-freq", config.sac_freq),
        ("scope", config.generate_scope),
        ("prompt-length", None if config.prompt_tokens else config.prompt_length),
        ("new-tokens", config.new_tokens),
        ("data", f"{data.kind}:{data.path}" if data else None),
        ("tokenizer", data.tokenizer if data else None),
        ("weights", config.weights.path if config.weights else None),
    )
    found |= {name: value for name, value in others if value is not None and value != "bytes"}
    return found


def _may_be_mixed(config: RunConfig) -> bool:
    workload = WORKLOADS.get(config.workload)
    usual = workload is not None and workload.recipe.mixed_precision
    return usual or config.mixed_precision


def _workload(config: RunConfig) -> str:
    if config.definition is None:
        return config.workload
    return json.dumps({"name": config.workload, **config.definition})
