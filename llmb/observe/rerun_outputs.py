"""A worker's outputs made again with the pristine model: honest on a device, or as reference.

A generated sequence is passed through the model at once, without a cache: what the cache changes
must not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor, nn

from llmb.config import RunConfig
from llmb.observe import probes
from llmb.observe.outputs import Look
from llmb.observe.passes import LIVE, STEP, bare, without_layers
from llmb.observe.rerun import Rerun
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights_file import WeightsFile, checked_bytes
from llmb.observe.wide_products import as_computed
from llmb.records.audited import GRADIENTS, LOGITS, STEP_VALUES, STEPS, StepsEvidence
from llmb.reference.data import random_tokens
from llmb.reference.elements import Format
from llmb.reference.formats import emulate
from llmb.reference.models import replace_parameter
from llmb.reference.shapes import Shape


def outputs_of(
    rerun: Rerun,
    config: RunConfig,
    shape: Shape,
    seed: int,
    token_seeds: Mapping[str, int],
    folder: Path,
    digests: Mapping[str, str],
) -> RerunOutputs:
    """Return the outputs to be made again, of the evidence in ``folder``.

    Raises:
        RunFailedError: a file is not what the worker wrote.
    """

    def read(name: str) -> bytes:
        return checked_bytes(folder / name, digests[name])

    steps = StepsEvidence.model_validate_json(read(STEPS))
    values, found = load(read(STEP_VALUES)), load(read(GRADIENTS))
    drawn = {k.partition("/")[0]: v for k, v in found.items() if k.endswith("/tokens")}
    kept = next((step for step in steps.steps if step.weights_kept), None)
    if kept is not None and f"{kept.index}/tokens" in values:
        drawn[STEP] = values[f"{kept.index}/tokens"]
    weights = rerun.live_file
    return RerunOutputs(
        config, shape, seed, kept.seed if kept else seed, token_seeds, weights, drawn
    )


class RerunOutputs:
    """Makes outputs again with the weights and tokens the worker had."""

    def __init__(
        self,
        config: RunConfig,
        shape: Shape,
        seed: int,
        step_seed: int,
        token_seeds: Mapping[str, int],
        weights: WeightsFile,
        drawn: Mapping[str, Tensor],
    ) -> None:
        """Take ``weights``; ``seed`` and ``step_seed`` say which logits are looked at.

        ``drawn`` holds the tokens that were generated in each pass, of the sequence looked at.
        """
        self._config, self._shape, self._weights, self._drawn = config, shape, weights, drawn
        self._seeds = {STEP: step_seed}
        self._seed, self._token_seeds = seed, token_seeds
        self._batches = StepBatches(config, shape)

    def logits(
        self, name: str, dtype: torch.dtype, device: str, emulated: Format | None = None
    ) -> dict[str, Tensor]:
        """Return ``{"<pass>/logits": ...}`` of pass ``name``, flat, float32 on the host."""
        shape = without_layers(self._shape) if name == probes.HEAD else self._shape
        model: nn.Module = bare(shape)
        declared = self._config.precision.dtype
        edits = probes.edits(name, self._shape, declared) if name in probes.PROBES else {}
        for parameter, _ in list(model.named_parameters()):
            value = self._weights.read(parameter)
            value = edits[parameter](value) if parameter in edits else value
            replace_parameter(model, parameter, value.to(device=device, dtype=dtype))
        if emulated is not None:
            model = emulate(model, emulated)
        model.eval()
        chosen, ids, first = self._sequence(name)
        with torch.no_grad(), as_computed(self._config, dtype, device):
            logits = model(ids[None].to(device))[0, first:]
        return {f"{name}/{LOGITS}": chosen.of_row(logits).to("cpu").float()}

    def _sequence(self, name: str) -> tuple[Look, Tensor, int]:
        """Return what is looked at in pass ``name``, the tokens ``[T]``, and the first position."""
        config, vocab = self._config, self._shape.vocab_size
        seed = self._seeds.get(name, self._seed)
        tokens = self._token_seeds.get(name)
        if tokens is None:
            tokens = probes.token_seed(self._seed, name)
        if config.new_tokens is not None:
            assert config.prompt_length is not None
            chosen = Look.of(seed, name, config.batch_size, config.new_tokens, vocab)
            size = config.batch_size, config.prompt_length
            probe = name in probes.PROBES
            prompt = random_tokens(tokens, *size, vocab) if probe else self._batches.prompt(tokens)
            drawn = self._drawn[name].long()[:-1]
            return chosen, torch.cat((prompt[chosen.row], drawn)), config.prompt_length - 1
        ids = self._batch(name, tokens)
        chosen = Look.of(seed, name, config.batch_size, ids.shape[1], vocab)
        return chosen, ids[chosen.row], 0

    def _batch(self, name: str, tokens: int) -> Tensor:
        if name not in probes.PROBES:
            return self._batches.make(tokens).ids
        # In the memory of the last step's.
        lengths = self._batches.lengths(self._token_seeds[LIVE])
        length = self._shape.sequence_length if lengths is None else max(lengths)
        return random_tokens(tokens, self._config.batch_size, length, self._shape.vocab_size)
