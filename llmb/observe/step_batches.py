"""Make the tokens of a step from the seed, equal in the worker and in every rerun."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.config import RunConfig
from llmb.observe.first_model import float32_by_default
from llmb.records.seeds import derive
from llmb.reference.data import Batch, make_batch, random_tokens
from llmb.reference.lengths import draw_lengths
from llmb.reference.shapes import Shape


class StepBatches:
    """Random tokens, or tokens from the run's files."""

    __slots__ = ("_config", "_shape", "_source")

    def __init__(self, config: RunConfig, shape: Shape) -> None:
        """Make batches for ``config`` at ``shape``.

        Raises:
            RunFailedError: the files of ``--data`` have changed.
            UsageError: the files hold too few tokens, or tokens outside the vocabulary.
        """
        self._config, self._shape, self._source = config, shape, None
        if config.data is not None:
            from llmb.inputs.tokens import open_tokens

            longest = shape.sequence_length
            self._source = open_tokens(config.data, shape.vocab_size, longest)

    @float32_by_default()
    def make(self, seed: int) -> Batch:
        """Return the full batch of the step with ``seed``, of all ranks, on the CPU."""
        size, longest = self._config.global_batch_size, self._shape.sequence_length
        tokens = None
        if self._source is not None:
            tokens = torch.from_numpy(self._source.sequences(seed, size, longest))
        return make_batch(seed, size, self._shape, tokens=tokens, lengths=self.lengths(seed))

    def masks(self, seed: int) -> list[int]:
        """Return the seeds of the masks of dropout in the step with ``seed``, one per replica.

        Empty without dropout.
        """
        replicas = self._config.parallelism.replicas if getattr(self._shape, "dropout", 0) else 0
        return [derive(seed, "masks", replica) for replica in range(replicas)]

    def lengths(self, seed: int) -> list[int] | None:
        """Return the sequence lengths in the step with ``seed``, None if all are equal."""
        if not self._config.dynamic:
            return None
        return draw_lengths(seed, self._config.global_batch_size, self._shape.sequence_length)

    def prompt(self, seed: int) -> Tensor:
        """Return the prompt ``[B, n]`` of the sample with ``seed``: random, of files, or given."""
        config = self._config
        assert config.prompt_length is not None
        size, length = config.batch_size, config.prompt_length
        if config.prompt_tokens:
            return torch.tensor([config.prompt_tokens]).expand(size, length)
        if self._source is not None:
            return torch.from_numpy(self._source.sequences(seed, size, length))
        return random_tokens(seed, size, length, self._shape.vocab_size)
