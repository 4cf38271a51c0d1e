"""AdamW's step is replaced by one that does nothing in every second call."""

import itertools

from torch.optim import AdamW

from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment():
    whole, numbers = AdamW.step, itertools.count()

    def step(self, closure=None):
        if next(numbers) % 2 == 0:
            return whole(self, closure)
        for state in self.state.values():
            state["step"] += 1
        return None

    AdamW.step = step
