"""Random tokens as litgpt wants its data."""

from __future__ import annotations

import torch
from litgpt.data import DataModule
from torch.utils.data import DataLoader, Dataset

_SAMPLES = 10**6


class _Tokens(Dataset[torch.Tensor]):
    def __init__(self, vocab_size: int, length: int) -> None:
        self._vocab_size, self._length = vocab_size, length

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(self._vocab_size, (self._length,), generator=generator)


class RandomTokens(DataModule):
    """Sequences of uniformly random tokens, one longer than the model takes, made on demand."""

    def __init__(self, vocab_size: int = 32000) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._batch_size, self._length = 1, 1

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None, **_) -> None:  # noqa: ANN001, ANN003
        """Take over what litgpt says of batch and sequence."""
        self._batch_size, self._length = batch_size, int(max_seq_length or 0) + 1

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return batches of tokens."""
        return DataLoader(_Tokens(self.vocab_size, self._length), batch_size=self._batch_size)

    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the same: litgpt validates on two batches before it trains."""
        return self.train_dataloader()
