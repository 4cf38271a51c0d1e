"""What a worker's process is like before any code of the plugin, to be compared with later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Thread
from types import CodeType
from typing import TYPE_CHECKING

from llmb.measure import clock
from llmb.observe import namespace, surroundings, types
from llmb.observe.exactness import Exactness
from llmb.parallel.together import of_all
from llmb.plugin.manager import Plugin
from llmb.processes.evidence_writer import EvidenceWriter
from llmb.records import evidence

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks


class TamperBaseline:
    """What the process was like before any code of the plugin, for rules N1, N2 and P2."""

    __slots__ = ("_disguised", "_names", "_own", "_surroundings", "exactness", "types")

    def __init__(
        self, *, census: bool, anew: bool = False, invited: Collection[CodeType] = ()
    ) -> None:
        """Look; with ``census`` listen for compiled programs, too.

        ``anew``: what the fork server has seen of torch does not count, it was changed on purpose.
        ``invited`` is the code of those functions of llmb that call a plugin's hooks at a fence.
        """
        self._names = namespace.unreachable_watch(anew=anew)
        self.exactness = Exactness()
        self._surroundings = surroundings.ProcessCensus(invited)
        self.types = types.TypeCensus() if census else None
        self._own: dict[type, object] = {}
        self._disguised: set[str] = set()

    def know(self, thread: Thread) -> None:
        """Take ``thread``, which the harness itself has started, for no stranger."""
        self._surroundings.know(thread)

    def look(self, steps: int, stamp_ns: int) -> None:
        """Look who is there at the fence after ``steps`` steps, stamped ``stamp_ns``."""
        self._surroundings.look(steps, stamp_ns)

    def close(self, own: Mapping[type, object], steps: int) -> None:
        """Look again, at the end of the stream: what is put back later does not count.

        ``own`` are objects of the harness by their classes: with another class they would have
        other methods. ``steps`` were done.
        """
        self._surroundings.look(steps, clock.now_ns())
        self._own = dict(own)
        self._look()
        self._names.close()

    def _look(self) -> None:
        self._disguised |= {k.__qualname__ for k, it in self._own.items() if type(it) is not k}

    def write(self, writer: EvidenceWriter, plugin: Plugin, ranks: Ranks | None = None) -> None:
        """Write down what has changed since, in the processes of all ``ranks``."""
        module, owner = plugin.module_name, plugin.distribution
        found = self._names.evidence(module, owner)
        self._look()
        disguised = tuple(
            evidence.Replacement(name=f"llmb.{name}", kind="foreign", origin="unknown")
            for name in sorted(self._disguised)
        )
        strangers = self.exactness.strangers(module, owner)
        update = {"replaced": (*found.replaced, *disguised), "strangers": strangers}
        found = found.model_copy(update=update)
        writer.write(evidence.NAMESPACE, of_all(ranks, found))
        around = self._surroundings.evidence(module, owner, plugin.native_libraries())
        writer.write(evidence.SURROUNDINGS, of_all(ranks, around))
