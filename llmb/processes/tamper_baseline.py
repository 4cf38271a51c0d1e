"""The state of a worker's process before any code of the plugin, for a later comparison."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from threading import Thread
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from llmb import clock
from llmb.observe import namespace, surroundings, types
from llmb.observe.exactness import Exactness
from llmb.parallel.together import of_all
from llmb.plugin.manager import Plugin
from llmb.processes.evidence_writer import EvidenceWriter
from llmb.records import evidence

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks


class TamperBaseline:
    """The state of the process before any code of the plugin, for rules N1, N2 and P2."""

    __slots__ = ("_disguised", "_names", "_own", "_surroundings", "_writes", "exactness", "types")

    def __init__(
        self,
        *,
        census: bool,
        anew: bool = False,
        invited: Collection[CodeType] = (),
        modules: Collection[ModuleType] = (),
        ranks: bool = False,
    ) -> None:
        """Record the state; with ``census`` listen for compiled programs, too.

        ``anew``: ignore the fork server's view of torch, because torch was changed on purpose.
        ``invited`` is the code of llmb's functions that call a plugin's hooks at a fence.
        ``modules`` of llmb take part in a step's pause; ``ranks``: this is one of several ranks.
        """
        self._names = namespace.unreachable_watch(anew=anew)
        self.exactness = Exactness(modules, ranks=ranks)
        self._surroundings = surroundings.ProcessCensus(invited)
        self.types = types.TypeCensus() if census else None
        self._own: dict[type, object] = {}
        self._disguised: set[str] = set()
        #: What the findings are written with: holder, name and value.
        self._writes: list[tuple[object, str, object]] = [(json, "dumps", json.dumps)]
        for kind in (evidence.NamespaceEvidence, evidence.SurroundingsEvidence):
            name = "__pydantic_serializer__"
            self._writes.append((kind, name, getattr(kind, name)))

    def know(self, thread: Thread) -> None:
        """Accept ``thread``, which the harness itself has started."""
        self._surroundings.know(thread)

    def look(self, steps: int, stamp_ns: int) -> None:
        """Look for new threads at the fence after ``steps`` steps, stamped ``stamp_ns``."""
        self._surroundings.look(steps, stamp_ns)

    def close(self, own: Mapping[type, object], steps: int) -> None:
        """Look again at the end of the stream: restoring a function later does not help a plugin.

        ``own`` maps classes of the harness to objects. An object with another class would have
        other methods. ``steps`` steps were done.
        """
        self._surroundings.look(steps, clock.now_ns())
        self._own = dict(own)
        self._look()
        self._names.close()
        self.exactness.close()

    def _look(self) -> None:
        self._disguised |= {k.__qualname__ for k, it in self._own.items() if type(it) is not k}

    def write(self, writer: EvidenceWriter, plugin: Plugin, ranks: Ranks | None = None) -> None:
        """Write down the changes since the baseline, in the processes of all ``ranks``."""
        module, owner = plugin.module_name, plugin.distribution
        found = self._names.evidence(module, owner)
        self._look()
        for holder, name, value in self._writes:  # else a plugin could empty the findings
            if getattr(holder, name) is not value:
                self._disguised.add(f"{getattr(holder, '__name__', '?')}.{name}")
                setattr(holder, name, value)
        disguised = tuple(
            evidence.Replacement(name=f"llmb.{name}", kind="foreign", origin="unknown")
            for name in sorted(self._disguised)
        )
        strangers = self.exactness.strangers(module, owner, self._names.stands)
        update = {"replaced": (*found.replaced, *disguised), "strangers": strangers}
        found = found.model_copy(update=update)
        writer.write(evidence.NAMESPACE, of_all(ranks, found))
        around = self._surroundings.evidence(module, owner, plugin.native_libraries())
        writer.write(evidence.SURROUNDINGS, of_all(ranks, around))
