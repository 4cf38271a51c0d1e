"""Asks installed plugins what they offer, and settles what will be run with one of them."""

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
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.records.seeds import derive
from llmb.supervision import selection, sizing, underflow
from llmb.supervision.lacking import consequences
from llmb.supervision.sizing import Estimate
from llmb.wire.child import Child
from llmb.wire.messages import Offer, OfferOrder, Resolved, Terms
from llmb.workloads import Workload

#: A plugin whose import or probe takes longer than this is taken to hang.
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Negotiated:
    """What will be run, what the plugin needs for it, and what was said meanwhile."""

    offer: Offer
    config: RunConfig
    terms: Terms
    #: Why vendors' plugins were passed over, for the user.
    notes: tuple[str, ...]
    log: str
    #: How long it will take; None where that was not asked for, or follows from no measurement.
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Chosen:
    """The offer that a run would take, and why vendors' plugins were passed over."""

    offer: Offer
    notes: tuple[str, ...]


def survey(plugins: Sequence[InstalledPlugin], request: RunRequest) -> list[Offer]:
    """Return one offer per plugin; a broken plugin's says why nothing is offered."""
    with Offers(plugins, request) as probes:
        return probes.offers


def negotiate(
    request: RunRequest,
    workload: Workload,
    place: RankAddress | None = None,
    *,
    estimate: bool = False,
) -> Negotiated:
    """Settle plugin, device (that of ``place``), precision and warm-up for ``request``.

    Where ``request`` leaves the size of the fixed model open, that too; ``workload`` is then only
    what it would be without a limit of time. ``estimate``: say how long a run will take.

    Raises:
        LlmbError: nothing on this machine can do it; see ``selection``.
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
    """Return what ``negotiate`` would choose for ``request``, of which nothing is settled yet.

    Raises:
        LlmbError: no plugin serves it.
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
    """Return a sentence for each vendor's plugin that is installed and cannot be used."""
    return tuple(
        f"plugin {offer.plugin!r} is not used: {selection.reason_of(offer)}"
        for offer in offers
        if offer.distribution != "llmb" and not offer.available
    )


def for_children(config: RunConfig) -> RunConfig:
    """Return ``config`` as children see it: with the model's seed, from which no token follows."""
    return config.model_copy(update={"seed": derive(config.seed, "model"), "nonce": None})


class Offers:
    """One process ``offer`` per plugin, all at work at once; leaving the context ends them."""

    def __init__(self, plugins: Sequence[InstalledPlugin], request: RunRequest) -> None:
        """Prepare probes of ``plugins`` for ``request``."""
        # A seed that was asked for is the run's own, and a plugin's hooks run in the probe.
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
        """Start every probe, order every offer, then collect them."""
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
        """Return what ``plugin`` needs for the resolved run.

        Raises:
            LlmbError: it does not say; names the plugin.
        """
        terms = self.settle_all({plugin: config})[plugin]
        if isinstance(terms, LlmbError):
            raise terms
        return terms

    def settle_all(self, configs: Mapping[str, RunConfig]) -> dict[str, Terms | LlmbError]:
        """Return what each plugin needs for its own of ``configs``, or why it does not say."""
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
        """Return what the probes wrote to their stdout and stderr."""
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
                return self._children[plugin.name].expect(Offer, PROBE_LIMIT_S)
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
        """Return ``error``, naming the plugin where its probe died or hung without saying so."""
        if not isinstance(error, RunFailedError):
            return error
        last_words = (self._said(plugin).strip().splitlines() or ["it said nothing"])[-1]
        quoted = "" if last_words in str(error) else f" ({last_words})"
        return UnavailableError(f"plugin {plugin!r} cannot be probed: {error}{quoted}")
