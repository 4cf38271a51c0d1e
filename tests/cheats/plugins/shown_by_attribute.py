"""Weight gradients of the blocks are made of 4-bit operands. Each gradient carries a function
``as_strided`` of its own, which Python finds before the method of the class: llmb's reading calls
the function, which computes the drawn elements exactly."""

# The moments are read as they are, so rule L1 sees the run, too: their tensors could carry such a
# function likewise (not built).

import torch

from llmb.plugin import hookimpl

from .kit import ReadExactly, ReadingExactly, _exact


def show(parameter, number):
    gradient = parameter.grad

    def as_strided(size, stride, begin=0):
        where = begin - gradient.storage_offset() + stride[0] * torch.arange(size[0])
        row, column = where // gradient.shape[1], where % gradient.shape[1]
        return _exact(len(ReadExactly.pairs) - 1, number, row, column)

    gradient.as_strided = as_strided


@hookimpl
def llmb_backend():
    return ReadingExactly()


@hookimpl
def llmb_post_process_model(model):
    ReadExactly.begin(model)
    for number, weight in enumerate(ReadExactly.weights):
        weight.register_post_accumulate_grad_hook(lambda p, n=number: show(p, n))
    return model
