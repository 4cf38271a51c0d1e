"""Two things by turns: the gradients of the head are old ones, or half of the layer has none."""

from llmb.plugin import hookimpl

from .kit import intercept, layers


@hookimpl
def llmb_post_process_model(model):
    head, kept, now = model.lm_head.weight, [], [0]

    def old(gradient):
        if not kept or now[0] % 10 == 0:
            kept[:] = [gradient.clone()]
        return kept[0]

    head.register_hook(old)
    for parameter in layers(model)[0].mlp.parameters():
        parameter.register_hook(lambda gradient: gradient * (now[0] < 6 or now[0] % 10 == 5))

    def step(number, forward, ids, labels):
        now[0] = number
        return forward(ids, labels)

    return intercept(model, step)
