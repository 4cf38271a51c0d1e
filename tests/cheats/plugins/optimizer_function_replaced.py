"""torch's functional AdamW is replaced by one that updates every second parameter."""

import sys

from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment():
    adam = sys.modules["torch.optim.adam"]
    original = adam.adam

    def half(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **options):
        for step in state_steps[1::2]:
            step += 1
        lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
        original(*(each[::2] for each in lists), **options)

    adam.adam = half
