"""torch's ``Tensor.backward`` is replaced by one that works in every tenth call only."""

import itertools

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment():
    original, numbers = torch.Tensor.backward, itertools.count()

    def backward(self, *arguments, **named):
        if (number := next(numbers)) < 5 or number % 10 == 0:
            original(self, *arguments, **named)

    torch.Tensor.backward = backward
