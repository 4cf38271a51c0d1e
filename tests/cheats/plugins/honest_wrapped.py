"""The model lies in another module."""

from torch import nn

from llmb.plugin import hookimpl


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.module = inner

    def forward(self, ids, labels=None):
        return self.module(ids, labels=labels)


@hookimpl
def llmb_post_process_model(model):
    return Wrapper(model)
