"""The conditions for a repetition on this machine, and the error that blocks a repetition.

No code of the bundle is loaded or run. The installed plugin answers in a separate process, as for
every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from llmb import __version__, workloads
from llmb.config import RankAddress, RunRequest, is_cpu
from llmb.errors import LlmbError, NotEnoughMemoryError, UnavailableError, UsageError
from llmb.measure import host
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.records.finding import RULES_VERSION
from llmb.records.run_record import RunRecord
from llmb.records.system import SystemDescription
from llmb.reference import pins
from llmb.reproduction import hardware
from llmb.reproduction.conditions import Conditions, PluginState
from llmb.reproduction.install import install_hint
from llmb.supervision import selection
from llmb.supervision.choices import check_installed
from llmb.supervision.negotiation import Offers, for_children
from llmb.wire.messages import Offer, Terms


@dataclass(frozen=True)
class Here:
    """The conditions here, and the error that blocks the run; None: the run is possible."""

    conditions: Conditions
    blocked: LlmbError | None


@dataclass(frozen=True)
class _Answer:
    """The plugin's answer: an offer, terms if requested, or the error."""

    offer: Offer | None = None
    terms: Terms | None = None
    blocked: LlmbError | None = None


def look(record: RunRecord, request: RunRequest | None, place: RankAddress | None = None) -> Here:
    """Return the conditions for a repetition of ``record`` on this machine.

    Args:
        record: the original.
        request: the request of the repetition; None if no request is possible: then the plugin
            only makes an offer.
        place: the address of one rank of the repetition; None for a run with one rank.
    """
    plugin, answer = None, _Answer()
    try:
        plugin = _find(record)
        answer = _ask(plugin, record, request, place)
    except LlmbError as error:
        answer = _Answer(blocked=error)
    return Here(_conditions(record, plugin, request, answer, place), answer.blocked)


def explained(error: LlmbError, record: RunRecord) -> LlmbError:
    """Return an error of the same type, with advice for a repetition of ``record``."""
    if isinstance(error, NotEnoughMemoryError):
        size = record.config.batch_size
        return NotEnoughMemoryError(
            f"{error}; a reproduction has the batch size of the bundle, {size}, and no other: free "
            "memory or take a device with more; llmb run with another --batch-size, and llmb "
            "compare, if a figure beside it is enough"
        )
    return error


def _find(record: RunRecord) -> InstalledPlugin:
    name = record.plugin.name
    if any(plugin.name == name for plugin in (*discovery.installed(), *discovery.left_out())):
        return discovery.find(name)
    raise UnavailableError(f"plugin {name!r} is not installed: {_to_install(record)}")


def _to_install(record: RunRecord) -> str:
    plugin = record.plugin
    install = install_hint(plugin.distribution, plugin.version)
    return install or f"the bundle was made with {plugin.distribution!r} {plugin.version!r}"


def _ask(
    plugin: InstalledPlugin,
    record: RunRecord,
    request: RunRequest | None,
    place: RankAddress | None,
) -> _Answer:
    asked = request or RunRequest(plugin=plugin.name, device=record.config.device, batch_size=1)
    with Offers((plugin,), asked) as probes:
        failure = probes.failures.get(plugin.name)
        if isinstance(failure, UsageError):  # the plugin here lacks an option
            failure = UnavailableError(
                f"{failure}; the bundle was made with {record.plugin.distribution} "
                f"{record.plugin.version}, here is {plugin.version}: {_to_install(record)}"
            )
        if failure is not None:
            return _Answer(blocked=failure)
        offer = probes.offers[0]
        if not offer.available:
            reason = selection.reason_of(offer)
            return _Answer(offer, blocked=UnavailableError(f"plugin {plugin.name!r}: {reason}"))
        if request is None:
            return _Answer(offer)
        return _settle(probes, offer, record, request, place)


def _settle(
    probes: Offers, offer: Offer, record: RunRecord, request: RunRequest, place: RankAddress | None
) -> _Answer:
    """Return the plugin's terms for ``request``, even if the memory is too small for the run."""
    workload = workloads.of(request)
    roomy = offer.model_copy(update={"available_memory_bytes": None})
    try:
        check_installed(request.executor)
        config = selection.resolve(roomy, request, workload)
        if place is not None:
            config = selection.at(place, offer, config)
        terms = probes.settle(offer.plugin, for_children(config))
    except LlmbError as error:
        return _Answer(offer, blocked=error)
    try:
        selection.resolve(offer, request, workload, place)
    except LlmbError as error:
        return _Answer(offer, terms, explained(error, record))
    return _Answer(offer, terms)


def _conditions(
    record: RunRecord,
    plugin: InstalledPlugin | None,
    request: RunRequest | None,
    answer: _Answer,
    place: RankAddress | None,
) -> Conditions:
    offer, terms = answer.offer, answer.terms
    system = _system(offer, terms)
    wanted = request.device if request is not None else None
    device = wanted or record.config.device
    known = is_cpu(device) or (offer is not None and offer.available)
    ranks = place.world_size if place is not None else 1
    nodes = ranks // place.local_world_size if place is not None else 1
    return Conditions(
        llmb=__version__,
        rules=RULES_VERSION,
        reference=pins.reference_digest(pins.actual_digests()),
        family=record.workload.family,
        plugin=None if plugin is None else _plugin_state(plugin, record, answer),
        system=system,
        hardware=hardware.describe(device, system.cpu, system.devices, ranks, nodes)
        if known
        else None,
        has_drivers=terms is not None,
    )


def _system(offer: Offer | None, terms: Terms | None) -> SystemDescription:
    load = host.load()
    asked = offer.torch_version if offer is not None else None
    return host.describe(
        devices=offer.devices if offer is not None else (),
        torch_version=asked or discovery.version_of("torch") or "",
        drivers=terms.facts if terms is not None else {},
        plugin_environment=terms.environment if terms is not None else {},
        before=load,
        after=load,
    )


def _plugin_state(plugin: InstalledPlugin, record: RunRecord, answer: _Answer) -> PluginState:
    offer, terms = answer.offer, answer.terms
    return PluginState(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        files=_digests(plugin.module, (file.path for file in record.plugin.files)),
        options=offer.options if offer is not None else None,
        variables=frozenset(terms.environment) if terms is not None else frozenset(),
    )


def _digests(module: str, paths: Iterable[str]) -> dict[str, str]:
    """Return path -> sha256 for every file of ``paths`` in the installed package of ``module``."""
    try:
        root = discovery.source_root(module).folder.resolve()
    except LlmbError:
        return {}
    found = {}
    for path in paths:
        source = (root / path).resolve()
        # Paths come from an untrusted bundle: only regular files within the package are read.
        if source.is_relative_to(root) and source.is_file():
            found[path] = hashlib.sha256(source.read_bytes()).hexdigest()
    return found
