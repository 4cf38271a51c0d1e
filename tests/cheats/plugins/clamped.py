"""The residual stream is clamped to what three deviations are at the start."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    last = layers(model)[-1]
    forward = last.forward

    def clamped(x, cos, sin):
        y = forward(x, cos, sin)
        limit = 3 * float(y.detach().float().std())
        return y.clamp(-limit, limit)

    last.forward = clamped
    return model
