"""Rerun a worker's outputs with the pristine model: honest on a device, or as the reference.

A generated sequence is passed through the model in a single pass, without a cache: effects of the
cache must not show.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors.torch import load
from torch import Tensor

from llmb.observe import probes
from llmb.observe.outputs import Look
from llmb.observe.passes import LIVE, STEP, Numerics, bare, without_layers
from llmb.observe.rerun import Rerun, RerunInputs
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights_file import WeightsFile
from llmb.observe.wide_products import as_computed
from llmb.records.audited import GRADIENTS, LOGITS, STEP_VALUES, STEPS, StepsEvidence
from llmb.reference.data import random_tokens
from llmb.reference.formats import emulate
from llmb.reference.models import replace_parameter


def outputs_of(rerun: Rerun) -> RerunOutputs:
    """Return the outputs to rerun, with the weights of ``rerun``.

    Raises:
        RunFailedError: a file differs from the file the worker wrote.
    """
    inputs, read = rerun.inputs, rerun.inputs.read
    steps = StepsEvidence.model_validate_json(read(STEPS))
    values, found = load(read(STEP_VALUES)), load(read(GRADIENTS))
    drawn = {k.partition("/")[0]: v for k, v in found.items() if k.endswith("/tokens")}
    kept = next((step for step in steps.steps if step.weights_kept), None)
    if kept is not None and f"{kept.index}/tokens" in values:
        drawn[STEP] = values[f"{kept.index}/tokens"]
    return RerunOutputs(inputs, kept.seed if kept else inputs.seed, rerun.live_file, drawn)


class RerunOutputs:
    """Reruns outputs with the weights and tokens of the worker."""

    def __init__(
        self,
        inputs: RerunInputs,
        step_seed: int,
        weights: WeightsFile,
        drawn: Mapping[str, Tensor],
    ) -> None:
        """Take ``weights``; the seeds of ``inputs`` and ``step_seed`` determine the sampled logits.

        ``drawn`` holds the tokens generated in each pass, for the sampled sequence.
        """
        self._config, self._shape = inputs.config, inputs.shape
        self._weights, self._drawn = weights, drawn
        self._seeds = {STEP: step_seed}
        self._seed, self._token_seeds = inputs.seed, inputs.token_seeds
        self._batches = StepBatches(inputs.config, inputs.shape)

    def logits(self, name: str, numerics: Numerics) -> dict[str, Tensor]:
        """Return ``{"<pass>/logits": ...}`` of pass ``name``, flat, float32 on the host."""
        shape = without_layers(self._shape) if name == probes.HEAD else self._shape
        model, device, dtype = bare(shape), numerics.device, numerics.dtype
        declared = self._config.precision.dtype
        edits = probes.edits(name, self._shape, declared) if name in probes.PROBES else {}
        for parameter, _ in list(model.named_parameters()):
            value = self._weights.read(parameter)
            value = edits[parameter](value) if parameter in edits else value
            replace_parameter(model, parameter, value.to(device=device, dtype=dtype))
        if numerics.emulated is not None:
            model = emulate(model, numerics.emulated)
        model.eval()
        chosen, ids, first = self._sequence(name)
        with torch.no_grad(), as_computed(self._config, dtype, device):
            logits = model(ids[None].to(device))[0, first:]
        return {f"{name}/{LOGITS}": chosen.of_row(logits).to("cpu").float()}

    def _sequence(self, name: str) -> tuple[Look, Tensor, int]:
        """Return the sampled logits of pass ``name``, the tokens ``[T]``, and first position."""
        config, vocab = self._config, self._shape.vocab_size
        seed = self._seeds.get(name, self._seed)
        tokens = self._token_seeds.get(name)
        if tokens is None:
            tokens = probes.token_seed(self._seed, name)
        if config.new_tokens is not None:
            assert config.prompt_length is not None
            chosen = Look.of(seed, name, config.batch_size, config.new_tokens, vocab)
            if name in probes.PROBES:
                prompt = random_tokens(tokens, config.batch_size, config.prompt_length, vocab)
            else:
                prompt = self._batches.prompt(tokens)
            drawn = self._drawn[name].long()[:-1]
            return chosen, torch.cat((prompt[chosen.row], drawn)), config.prompt_length - 1
        ids = self._batch(name, tokens)
        chosen = Look.of(seed, name, config.batch_size, ids.shape[1], vocab)
        return chosen, ids[chosen.row], 0

    def _batch(self, name: str, tokens: int) -> Tensor:
        if name not in probes.PROBES:
            return self._batches.make(tokens).ids
        # Probe tokens overwrite the last step's tokens: same shape.
        lengths = self._batches.lengths(self._token_seeds[LIVE])
        length = self._shape.sequence_length if lengths is None else max(lengths)
        return random_tokens(tokens, self._config.batch_size, length, self._shape.vocab_size)
