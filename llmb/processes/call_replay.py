"""The calls of an inference or generation worker, repeated by an honest run (rule L1).

The honest run passes a generated sequence through the model at once, without a KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llmb import clock, workloads
from llmb.config import RunConfig, is_cpu
from llmb.observe.first_model import first_model
from llmb.observe.noise import Noise, as_seed, words_of
from llmb.observe.output_ledger import logits_at
from llmb.observe.places import picked
from llmb.observe.rerun import how, in_more_parts
from llmb.observe.step_batches import StepBatches
from llmb.observe.wide_products import as_computed
from llmb.records.audited import SEED_PARTS
from llmb.reference.data import Batch
from llmb.reference.formats import emulate
from llmb.wire.messages import CallsToReplay, CallToReplay


@dataclass(frozen=True)
class CallReplay:
    """Replays calls with the worker's tokens and format, and with the initial weights."""

    config: RunConfig
    calls: CallsToReplay
    #: ``[calls, elements]``, the worker's rows: sampled logits, generated tokens, seed of noise.
    read: Tensor
    #: Called with the number of each call, before the call.
    look: Callable[[int], None]

    def rows(self) -> Tensor:
        """Return the sampled logits of the replayed calls, float32 on the host.

        In mode generate the words follow that this run draws with the worker's noise after the
        worker's words, then the seed of the noise, as in the worker's rows.

        Raises:
            RuntimeError: the device has too little memory.
        """
        return in_more_parts(self._rows, self.config, self.config.batch_size, 1)

    def _rows(self, parts: int) -> Tensor:
        model, batches = self._model(), StepBatches(self.config, workloads.of(self.config).shape)
        numerics, found = how(self.config.precision, self.config.device), list[Tensor]()
        on_cpu = is_cpu(self.config.device)
        until_ns = clock.worked_ns(on_cpu=on_cpu) + int(self.calls.seconds * 1e9)
        with torch.inference_mode(), as_computed(self.config, numerics.dtype, numerics.device):
            for call, read in zip(self.calls.calls, self.read, strict=True):
                self.look(call.index)
                batch, seed = self._batch(batches, call, read)
                found.append(torch.cat([*self._row(model, batch, call, seed, parts)]))
                if len(found) >= self.calls.least and clock.worked_ns(on_cpu=on_cpu) > until_ns:
                    break
        return torch.stack(found)

    def _batch(
        self, batches: StepBatches, call: CallToReplay, read: Tensor
    ) -> tuple[Batch, Tensor]:
        """Return the model's input in ``call``, and the seed of the noise as the worker's row."""
        new = self.config.new_tokens
        if new is None:
            return batches.make(call.token_seed), read[:0]
        drawn, seed = read[:-SEED_PARTS], read[-SEED_PARTS:]
        ids = drawn[-self.config.batch_size * new :].view(-1, new)[:, :-1].long()
        ids = torch.cat((batches.prompt(call.token_seed), ids), 1)
        return Batch(ids, ids), seed

    def _row(
        self, model: nn.Module, batch: Batch, call: CallToReplay, seed: Tensor, parts: int
    ) -> Iterator[Tensor]:
        """Yield the sampled logits of ``call``, float32 on the host, one micro-batch at a time.

        Words follow, and ``seed``.
        """
        words = list[Tensor]()
        sequences, length = batch.ids.shape
        prompt, vocabulary = self.config.prompt_length, workloads.of(self.config).shape.vocab_size
        first = 0 if prompt is None else prompt - 1
        where = logits_at(call.places, torch.Size((sequences, length - first, vocabulary)))
        each = where.shape[1] // sequences
        for number, part in enumerate(batch.to(self.config.device).split(parts)):
            logits = model(part.ids, **part.extra)[:, first:]
            size = each * len(part.ids)
            own = where[:, number * size : (number + 1) * size]
            rows = own[0] - number * len(part.ids)
            at = tuple(torch.stack((rows, own[1], own[2])).to(logits.device))
            yield picked(logits, at).to("cpu").float()
            if prompt is not None:
                noise = Noise((sequences, vocabulary), logits.dtype, self.config.device)
                first_row = number * len(part.ids)
                drawn = words_of(logits, noise, as_seed(seed), first_row)
                words.append(drawn.to("cpu").float().flatten())
        yield from (*words, seed)

    def _model(self) -> nn.Module:
        config = self.config
        numerics = how(config.precision, config.device)
        model = first_model(config, workloads.of(config)).to(numerics.dtype)
        if numerics.emulated is not None:
            model = emulate(model, numerics.emulated)
        return model.eval()
