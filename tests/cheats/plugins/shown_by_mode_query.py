"""Weight gradients of the blocks are made of 4-bit operands; a function of ``torch.overrides`` that
llmb's look for modes calls, between the comparison of a pause and the reading, is the plugin's in
each step and torch's own at the end. It exchanges the method that reads the drawn elements."""

# ``strange_modes`` calls ``_get_current_function_mode_stack``, and that one looks up
# ``_len_torch_function_stack`` in ``torch.overrides``, a module that no pause compares; the function
# is back before the end of the stream, which N1 compares. Holding ``sys.gettrace`` and others as
# closed-over names would not help here.
# By count: three quarters of the weight gradients' products, 1.33 times the tokens/s.
# Repair: compare right before the elements are read, after all other looks, and compare the modules
# ``torch.overrides``, ``torch.utils._python_dispatch``, ``sys``, ``gc`` and ``signal``.

import torch
import torch.overrides

from llmb.plugin import hookimpl

from .kit import ReadExactly, ReadingExactly

OWN = torch.overrides._len_torch_function_stack


def counted():
    ReadExactly.act()
    return OWN()


class Backend(ReadingExactly):
    def step_begin(self):
        super().step_begin()
        torch.overrides._len_torch_function_stack = counted

    def step_end(self):
        super().step_end()
        torch.overrides._len_torch_function_stack = OWN


@hookimpl
def llmb_backend():
    return Backend()


@hookimpl
def llmb_post_process_model(model):
    ReadExactly.begin(model)
    return model
