"""8-bit weights everywhere, in the honest run too: it is as rough as the cheat's."""

import torch.nn.functional as F
from torch import nn

from llmb.plugin import hookimpl

from .kit import int8


@hookimpl
def llmb_set_environment():
    def forward(self, x):
        return F.linear(x, self.weight + (int8(self.weight) - self.weight).detach())

    nn.Linear.forward = forward
