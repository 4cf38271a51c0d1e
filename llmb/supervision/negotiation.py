"""Asks installed plugins for offers, and settles the run with the chosen plugin."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from llmb import workloads
from llmb.config import RankAddress, RunConfig, RunRequest
from llmb.errors import LlmbError, RunFailedError, UnavailableError
from llmb.formats import fault_of
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.records.seeds import derive
from llmb.supervision import selection, sizing, underflow
from llmb.supervision.lacking import consequences
from llmb.supervision.sizing import Estimate
from llmb.wire.child import Child
from llmb.wire.messages import Offer, OfferOrder, Resolved, Terms
from llmb.workloads import Workload

#: Seconds for a plugin's import or probe; a slower plugin counts as hanging.
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Negotiated:
    """The settled run, the plugin's terms, and the output of the probes."""

    offer: Offer
    config: RunConfig
    terms: Terms
    #: Notes for the user, for example the reasons for which vendors' plugins are not used.
    notes: tuple[str, ...]
    log: str
    #: Estimated time of the run; None if no estimate was requested, or if no measurement gives one.
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Chosen:
    """The offer that a run would take, with a note for each vendor's plugin not used."""

    offer: Offer
    notes: tuple[str, ...]


def survey(plugins: Sequence[InstalledPlugin], request: RunRequest) -> list[Offer]:
    """Return one offer per plugin; the offer of a broken plugin has the reason."""
    with Offers(plugins, request) as probes:
        return probes.offers


def negotiate(
    request: RunRequest,
    workload: Workload,
    place: RankAddress | None = None,
    *,
    estimate: bool = False,
) -> Negotiated:
    """Settle plugin, device (the device of ``place``), precision and warm-up for ``request``.

    With a time limit (``within_s``), the size of the fixed model is settled, too; ``workload`` is
    then only the size without a time limit. ``estimate``: estimate the time of the run.

    Raises:
        LlmbError: no plugin on this machine can do the run; see ``selection``.
    """
    with Offers(_candidates(request), request) as probes:
        offer = _best(probes, request)

        def settle(config: RunConfig) -> Terms:
            return probes.settle(offer.plugin, for_children(config))

        doubts: tuple[str, ...] = ()
        if request.within_s is not None:
            sized = sizing.choose(offer, request, settle)
        else:
            config = selection.resolve(offer, request, workload, place, tries=True)
            doubts = selection.doubts(offer, config, workload, place)
            wanted = estimate and sizing.can_be_estimated(config, request)
            sized = sizing.estimated(config, settle) if wanted else sizing.Sized(config)
        config = sized.config
        if place is not None:
            config = selection.at(place, offer, config)
        terms = settle(config)
        steps = max(config.warmup_steps, terms.warmup_steps)
        config = config.model_copy(update={"warmup_steps": steps})
        notes = (*_passed_over(probes.offers), *sized.notes, *doubts)
        notes += consequences(config, offer.lacks)
        notes += underflow.warnings(config, workloads.of(config))
        return Negotiated(offer, config, terms, notes, probes.log(), sized.estimate)


def choose(request: RunRequest) -> Chosen:
    """Return the offer that ``negotiate`` would choose for ``request``, without settling a run.

    Raises:
        LlmbError: no plugin serves the request.
    """
    with Offers(_candidates(request), request) as probes:
        return Chosen(_best(probes, request), _passed_over(probes.offers))


def _candidates(request: RunRequest) -> tuple[InstalledPlugin, ...]:
    named = request.plugin
    return discovery.installed() if named is None else (discovery.find(named),)


def _best(probes: Offers, request: RunRequest) -> Offer:
    if request.plugin is not None and request.plugin in probes.failures:
        raise probes.failures[request.plugin]
    return selection.best_offer(probes.offers, request)


def _passed_over(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Return a sentence for each installed vendor's plugin that cannot be used."""
    return tuple(
        f"plugin {offer.plugin!r} is not used: {selection.reason_of(offer)}"
        for offer in offers
        if offer.distribution != "llmb" and not offer.available
    )


def _sound(offer: Offer) -> Offer:
    """Return ``offer``, with formats that agree with their names, and a device that can be.

    The plugin's own process checks the formats, too, with the plugin's code in it.

    Raises:
        UnavailableError: a format does not agree with its name, or the device cannot lack the
            abilities that the backend calls lacking.
    """
    fault = offer.lacks.fault(offer.device)
    if fault is not None:
        raise UnavailableError(f"plugin {offer.plugin!r}: {fault}")
    for offered in offer.precisions:
        fault = fault_of(offered.name, offered.bits, offered.dtype, offered.format)
        if fault is not None:
            raise UnavailableError(f"plugin {offer.plugin!r} offered {offered.name} with {fault}")
    return offer


def for_children(config: RunConfig) -> RunConfig:
    """Return ``config`` for child processes: with only the model's seed, and without the nonce.

    No token follows from the model's seed.
    """
    return config.model_copy(update={"seed": derive(config.seed, "model"), "nonce": None})


class Offers:
    """One process ``offer`` per plugin, all at the same time; leaving the context ends each."""

    def __init__(self, plugins: Sequence[InstalledPlugin], request: RunRequest) -> None:
        """Prepare probes of ``plugins`` for ``request``."""
        # A requested seed is the run's seed, and plugin hooks run in the probe: remove the seed.
        self._plugins, self._request = (
            plugins,
            request.model_copy(update={"seed": None, "nonce": None}),
        )
        self._stack = ExitStack()
        self._children: dict[str, Child] = {}
        self._outputs: dict[str, IO[bytes]] = {}
        self.offers: list[Offer] = []
        self.failures: dict[str, LlmbError] = {}

    def __enter__(self) -> Offers:
        """Start every probe, order every offer, then collect the offers."""
        with ExitStack() as stack:
            sound = [plugin for plugin in self._plugins if plugin.fault is None]
            started = {}
            for plugin in sound:
                output = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                self._outputs[plugin.name] = output
                started[plugin.name] = Child("llmb.processes.offer", {}, output)
                stack.callback(started[plugin.name].end)
            for plugin in self._plugins:
                self._order(plugin, started.get(plugin.name))
            self.offers += map(self._collect, self._plugins)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End every probe."""
        self._stack.close()

    def settle(self, plugin: str, config: RunConfig) -> Terms:
        """Return the terms of ``plugin`` for the resolved run, such as environment variables.

        Raises:
            LlmbError: the plugin gives no terms; the message names the plugin.
        """
        terms = self.settle_all({plugin: config})[plugin]
        if isinstance(terms, LlmbError):
            raise terms
        return terms

    def settle_all(self, configs: Mapping[str, RunConfig]) -> dict[str, Terms | LlmbError]:
        """Return each plugin's terms for the plugin's config in ``configs``, or the error."""
        for plugin, config in configs.items():
            self._children[plugin].send(Resolved(config=config))
        found: dict[str, Terms | LlmbError] = {}
        for plugin in configs:
            try:
                found[plugin] = self._children[plugin].expect(Terms, PROBE_LIMIT_S)
            except LlmbError as error:
                found[plugin] = self._named(plugin, error)
        return found

    def log(self) -> str:
        """Return the stdout and stderr of all probes."""
        return "".join(map(self._said, self._outputs))

    def _said(self, plugin: str) -> str:
        output = self._outputs[plugin]
        # By position: the child shares the file's offset and may still be writing.
        size = os.fstat(output.fileno()).st_size
        return os.pread(output.fileno(), size, 0).decode(errors="replace")

    def _order(self, plugin: InstalledPlugin, child: Child | None) -> None:
        try:
            if child is None:
                raise UnavailableError(plugin.fault)
            child.begin()
            child.send(OfferOrder(plugin=plugin.name, request=self._request))
            self._children[plugin.name] = child
        except LlmbError as error:
            self.failures[plugin.name] = self._named(plugin.name, error)

    def _collect(self, plugin: InstalledPlugin) -> Offer:
        if plugin.name not in self.failures:
            try:
                return _sound(self._children[plugin.name].expect(Offer, PROBE_LIMIT_S))
            except LlmbError as error:
                self.failures[plugin.name] = self._named(plugin.name, error)
        return Offer(
            plugin=plugin.name,
            distribution=plugin.distribution,
            version=plugin.version,
            available=False,
            reason=str(self.failures[plugin.name]),
            device=self._request.device or "",
            torch_version="",
            broken=True,
        )

    def _named(self, plugin: str, error: LlmbError) -> LlmbError:
        """Return ``error``; name the plugin if the probe died or hung without a message."""
        if not isinstance(error, RunFailedError):
            return error
        last_words = (self._said(plugin).strip().splitlines() or ["it said nothing"])[-1]
        quoted = "" if last_words in str(error) else f" ({last_words})"
        return UnavailableError(f"plugin {plugin!r} cannot be probed: {error}{quoted}")
