"""The evidence folder of one repeat: every file written there is announced with its digest."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import Tensor, nn

from llmb.config import Frozen
from llmb.endings import is_out_of_space
from llmb.errors import LlmbError
from llmb.observe import model_tree, plugin_files, weights_file
from llmb.observe.canonical import Canonical, Origin
from llmb.observe.closed_components import closed_components
from llmb.observe.one_part import PartKeeper
from llmb.observe.weights import canonical_digests, digests
from llmb.parallel.together import of_all
from llmb.plugin.manager import Plugin
from llmb.records import evidence
from llmb.records.audited import PART, PART_SEEN, PartSeen
from llmb.records.canonical import pretty_bytes
from llmb.records.printable import plain_text
from llmb.wire.channel import Channel
from llmb.wire.messages import EvidenceFile, Phase, Unmade, WorkOrder

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

#: Longest part of an error message that is sent to the supervisor, in characters.
_LONGEST = 300


class Pristine:
    """The model before post-processing, remembered as text and digests, without any tensor."""

    def __init__(self, model: nn.Module, *, described: bool) -> None:
        """Remember the parameters of ``model``; if ``described``, modules and digests too."""
        self.origin = Origin(model)
        self.sizes = {name: p.numel() for name, p in model.named_parameters()}
        self.tree = model_tree.describe(model) if described else {}
        self.digests = digests(model) if described else ()


@contextmanager
def apart(channel: Channel, what: str) -> Iterator[None]:
    """Let the part ``what`` of the evidence fail alone: the supervisor receives the reason.

    Example: ``the reference on the device failed: TypeError: Cannot convert a MPS Tensor to
    float64 dtype``. An error of llmb's own, such as altered weights, ends all parts.
    """
    try:
        yield
    except LlmbError:
        raise
    except Exception as error:
        if is_out_of_space(error):  # the other parts would not find room either
            raise
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {first}"[:_LONGEST]
        channel.send(Unmade(what=what, reason=reason))


class Announcer:
    """Writes files into an evidence folder and announces each with its digest."""

    __slots__ = ("_channel", "_folder")

    def __init__(self, channel: Channel, folder: str) -> None:
        """Write into ``folder``."""
        self._channel, self._folder = channel, Path(folder)

    def write(self, name: str, value: Frozen) -> None:
        """Write ``value`` as the JSON file ``name``."""
        self.write_bytes(name, pretty_bytes(value))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write the file ``name`` and announce its digest."""
        (self._folder / name).write_bytes(data)
        self._channel.send(EvidenceFile(name=name, sha256=hashlib.sha256(data).hexdigest()))

    def part(self, name: str, keeper: PartKeeper, folder: str) -> None:
        """Write the tensors kept of one part as the file ``name`` of the scratch ``folder``."""
        data = save(keeper.tensors)
        (Path(folder) / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        self._channel.send(EvidenceFile(name=name, sha256=digest, scratch=True))


class EvidenceWriter(Announcer):
    """Writes a worker's evidence files; writes nothing if the order wants no evidence."""

    __slots__ = ("_scratch", "_wanted")

    def __init__(self, channel: Channel, order: WorkOrder) -> None:
        """Write into the folders of ``order``."""
        super().__init__(channel, order.evidence_folder)
        self._scratch = Path(order.scratch_folder) if order.scratch_folder else None
        self._wanted = order.collect_evidence

    def post_processed(self, pristine: Pristine, model: nn.Module, canonical: Canonical) -> None:
        """Write down how post-processing changed the model remembered in ``pristine``."""
        if not self._wanted:
            return
        self.write(
            evidence.MODEL,
            evidence.ModelEvidence(before=pristine.tree, after=model_tree.describe(model)),
        )
        self.write(evidence.WEIGHTS, _weights(pristine, model, canonical))

    def plugin(self, plugin: Plugin, ranks: Ranks | None = None) -> None:
        """Write down the plugin files that ``ranks`` have loaded, and the plugin's declarations."""
        if not self._wanted:
            return
        found = evidence.PluginEvidence(
            files=plugin_files.loaded_sources(plugin.module_name),
            run_otherwise=plugin_files.loaded_otherwise(plugin.module_name),
            closed_components=closed_components(
                plugin.module_name, plugin.distribution, plugin.native_libraries()
            ),
            declared_patches=plugin.patches(),
            declared_helpers=plugin.helpers(),
        )
        self.write(evidence.PLUGIN, of_all(ranks, found))

    def program(self, plugin: Plugin, tensors: Sequence[Tensor]) -> None:
        """Write down the program about to compute ``tensors``, if the device has a program."""
        if self._wanted and (text := plugin.program(tensors)) is not None:
            self.write_bytes(evidence.PROGRAM, plain_text(text).encode())

    def phase(self, name: str) -> None:
        """Announce the phase that begins."""
        self._channel.send(Phase(name=name))

    def weights(self, name: str, canonical: Canonical, *, alone: bool = False) -> None:
        """Write all weights to the scratch file ``name``, if this rank is asked for weights.

        ``alone``: without further threads (``weights_file.write``).
        """
        if self._scratch is None:
            for _ in canonical.values():  # of sharded weights every rank has to give a part
                pass
            return
        path, values, names = self._scratch / name, canonical.values(), canonical.names
        digest = weights_file.write(path, values, names=names, alone=alone)
        self._channel.send(EvidenceFile(name=name, sha256=digest, scratch=True))

    def kept_part(self, keeper: PartKeeper, seen: PartSeen) -> None:
        """Write the tensors kept of one part, and the location of the part."""
        assert self._scratch is not None
        self.write(PART_SEEN, seen)
        self.part(PART, keeper, str(self._scratch))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write the file ``name``, if evidence is wanted."""
        if self._wanted:
            super().write_bytes(name, data)


def _weights(
    pristine: Pristine, model: nn.Module, canonical: Canonical
) -> evidence.WeightsEvidence:
    stored = dict(model.named_parameters())
    padding = canonical.padding
    known = set(padding) if canonical.mapped else {*padding, *canonical.by_stored}
    return evidence.WeightsEvidence(
        pristine=pristine.digests,
        processed=canonical_digests(canonical),
        padding=padding,
        missing=tuple(canonical.missing),
        foreign=() if canonical.mapped else tuple(sorted(set(stored) - known)),
        frozen=tuple(
            sorted(n for n, p in stored.items() if not p.requires_grad and n not in padding)
        ),
        stored_elements=sum(p.numel() for p in stored.values()),
        canonical_elements=sum(value.numel() for _, value in canonical.values()),
    )
