"""Weight gradients of the blocks are made of 4-bit operands; the optimizer's table of hooks is a
plugin's, and llmb asks for its values in each pause between the comparison and the reading. The
table exchanges the method that reads the drawn elements, and these are computed exactly."""

# By count: three quarters of the products of weight gradients, 1.33 times the tokens/s
# (docs/adr/0097).

import sys
from collections import OrderedDict

from llmb.plugin import hookimpl

from .kit import ReadExactly, ReadingExactly


class Hooks(OrderedDict):
    def values(self):
        ReadExactly.act()
        return super().values()


@hookimpl
def llmb_backend():
    return ReadingExactly()


@hookimpl
def llmb_post_process_model(model):
    ReadExactly.begin(model)
    sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks = Hooks()
    return model
