"""Examines the machine for ``llmb doctor``: all plugins, and torch, at the same time.

Neither torch nor a plugin is imported here: a separate process imports torch, and a separate
process imports each plugin.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from llmb import __version__, workloads
from llmb.config import RunConfig, RunRequest, environment
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError
from llmb.measure import host
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin, TorchExtension
from llmb.records.canonical import as_json
from llmb.records.finding import RULES_VERSION
from llmb.records.redact import redact_everything
from llmb.reference import pins
from llmb.supervision import packages, selection, sizing
from llmb.supervision.diagnosis import (
    BROKEN,
    DiagnosedPlugin,
    Diagnosis,
    HostState,
    LlmbState,
    Restriction,
    TorchState,
    state_of,
)
from llmb.supervision.missing import what_is_missing
from llmb.supervision.negotiation import Offers, for_children
from llmb.supervision.sizing import USUAL_WITHIN_S
from llmb.wire.child import Child
from llmb.wire.messages import Offer, Terms, TorchFacts

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Seconds that a child may take to import torch, for example from a cold network file system.
_TORCH_LIMIT_S = 300.0
_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
_REQUEST = RunRequest(batch_size=1)


def examine() -> Diagnosis:
    """Return the machine's features and missing parts, without private data."""
    plugins = discovery.installed()
    with _inspector({}) as inspector:
        with Offers(plugins, _REQUEST) as probes:
            offers = probes.offers
            terms = probes.settle_all(_configs(offers))
            states = tuple(_plugin_state(offer, terms.get(offer.plugin)) for offer in offers)
            choice = _choice(probes, states)
        torch = _torch_state(inspector)
    names = _distributions(plugins, torch.extensions)
    load = host.load()
    system = host.describe(
        devices=(), torch_version="", drivers={}, plugin_environment={}, before=load, after=load
    )
    found = Diagnosis(
        llmb=_llmb_state(),
        host=HostState(
            os=system.os,
            python=system.python,
            cpu=system.cpu,
            memory=system.memory,
            free_disk_bytes=host.free_disk_bytes(),
            limits=host.container_limits(),
            bus=host.bus_accelerators(),
            load_1min=load.load_1min,
        ),
        torch=torch,
        plugins=states,
        restriction=_restriction(),
        choice=choice,
        packages=packages.versions_around(["llmb", "torch", *names]),
        unmet=tuple(line for name in ("llmb", *names) for line in packages.unmet(name)),
        compilers=tuple(name for name in (*_named_compilers(), *_COMPILERS) if shutil.which(name)),
        environment=system.env,
        missing=(),
    )
    found = found.model_copy(update={"missing": what_is_missing(found)})
    data = as_json(found)
    return Diagnosis.model_validate({**redact_everything(data), "schema": data["schema"]})


@contextmanager
def _inspector(variables: Mapping[str, str]) -> Iterator[Child]:
    """Give the child that examines torch; leaving the context ends the child."""
    with tempfile.TemporaryFile(buffering=0) as log:
        child = Child("llmb.processes.torch_facts", variables, log)
        try:
            yield child
        finally:
            child.end()


def _facts(inspector: Child) -> TorchFacts:
    """Return the facts about torch, or the error that ended the child."""
    try:
        inspector.begin()
        return inspector.expect(TorchFacts, _TORCH_LIMIT_S)
    except RunFailedError as error:
        return TorchFacts(error=f"import torch: {error}")


def _torch_state(inspector: Child) -> TorchState:
    facts, extensions = _facts(inspector), discovery.torch_entry_points()
    autoload = environment().get(_AUTOLOAD)
    alone = None
    if facts.error is not None and extensions and autoload != "0":
        with _inspector({_AUTOLOAD: "0"}) as without:
            bare = _facts(without)
        alone = bare.error is None
        facts = bare.model_copy(update={"error": facts.error})
    return TorchState(
        installed=discovery.version_of("torch"),
        importable_alone=alone,
        extensions=extensions,
        autoload=autoload,
        **facts.model_dump(exclude={"kind"}),
    )


def _llmb_state() -> LlmbState:
    actual, pinned = pins.actual_digests(), pins.pinned_digests()
    changed = sorted(n for n in {*actual, *pinned} if actual.get(n) != pinned.get(n))
    return LlmbState(
        version=__version__,
        rules_version=RULES_VERSION,
        reference_digest=pins.reference_digest(actual),
        reference_changed=tuple(changed),
    )


def _official() -> workloads.Workload:
    return workloads.find(_REQUEST.workload, {})


def _configs(offers: Sequence[Offer]) -> dict[str, RunConfig]:
    """Return a run for each ready plugin, by name, for a request of the plugin's facts."""
    found = {}
    for offer in offers:
        roomy = offer.model_copy(update={"available_memory_bytes": None})
        if offer.available and any(precision.native for precision in offer.precisions):
            found[offer.plugin] = for_children(selection.resolve(roomy, _REQUEST, _official()))
    return found


def _plugin_state(offer: Offer, terms: Terms | LlmbError | None) -> DiagnosedPlugin:
    faulty = isinstance(terms, LlmbError)
    offer = offer.model_copy(update={"reason": str(terms)}) if faulty else offer
    return DiagnosedPlugin(
        name=offer.plugin,
        distribution=offer.distribution,
        version=offer.version,
        state=BROKEN if faulty else state_of(offer),
        reason=None if offer.reason is None else selection.reason_of(offer),
        device=offer.device,
        devices=offer.devices,
        available_memory_bytes=offer.available_memory_bytes,
        precisions=tuple(precision.name for precision in offer.precisions),
        slow=tuple(precision.name for precision in offer.precisions if precision.is_slow),
        widened=tuple(p.name for p in offer.precisions if p.products is not None),
        refused={refused.name: refused.reason for refused in offer.refused},
        lacks=offer.lacks,
        options=offer.options,
        facts=dict(terms.facts) if isinstance(terms, Terms) else {},
        official_run=_against_the_official_run(offer) if isinstance(terms, Terms) else None,
    )


def _against_the_official_run(offer: Offer) -> str | None:
    try:
        selection.resolve(offer, _REQUEST, _official())
    except NotEnoughMemoryError as error:
        return str(error)
    except LlmbError:  # no usable format: the list of formats shows the lack
        return None
    return None


def _choice(probes: Offers, states: Sequence[DiagnosedPlugin]) -> str | None:
    """Return the choice of ``llmb run``; measuring a CPU's rates takes seconds."""
    broken = {state.name for state in states if state.state == BROKEN}
    request = _REQUEST.model_copy(update={"within_s": USUAL_WITHIN_S})
    try:
        sound = [offer for offer in probes.offers if offer.plugin not in broken]
        offer = selection.best_offer(sound, request)
        sized = sizing.choose(
            offer, request, lambda config: probes.settle(offer.plugin, for_children(config))
        )
    except (LlmbError, IndexError):
        return None
    config = sized.config
    what = sized.notes or (f"{config.workload} in {config.precision.described}",)
    return f"plugin {config.plugin}, device {config.device}: {'; '.join(what)}"


def _restriction() -> Restriction | None:
    given = environment().get(discovery.LOAD_PLUGINS)
    if given is None:
        return None
    left_out = tuple(f"{plugin.name} ({plugin.distribution})" for plugin in discovery.left_out())
    return Restriction(value=given, left_out=left_out, unknown=discovery.unknown_names())


def _distributions(
    plugins: Sequence[InstalledPlugin], extensions: Sequence[TorchExtension]
) -> tuple[str, ...]:
    """Return the vendors' distributions, of plugins and of extensions loaded by torch itself."""
    found = [p.distribution for p in (*plugins, *discovery.left_out()) if not p.built_in]
    found += [extension.distribution for extension in extensions]
    return tuple(dict.fromkeys(found))


def _named_compilers() -> tuple[str, ...]:
    """Return the compilers named by environment variables, such as CXX and CC."""
    given = environment()
    return tuple(given[name] for name in ("CXX", "CC") if given.get(name))
