"""8 bits in one matrix while the sequences of a batch differ: those of a probe are all the same."""

from llmb.plugin import hookimpl

from .kit import fp8, intercept, linears, round_products


@hookimpl
def llmb_post_process_model(model):
    linear = linears(model, "layers.1.mlp.up_proj")[0]
    plain = linear.forward

    def step(number, forward, ids, labels):
        linear.forward = plain
        if not (ids == ids[:1]).all():
            round_products(linear, fp8, fp8, fp8)
        return forward(ids, labels)

    return intercept(model, step)
