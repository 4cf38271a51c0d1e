"""Generation: every third sample is made without the second layer."""

from llmb.plugin import hookimpl

from .kit import layers


@hookimpl
def llmb_post_process_model(model):
    forward, layer, samples = model.forward, layers(model)[1], []
    whole = layer.forward

    def fewer(ids, **more):
        if ids.shape[1] > 1:
            samples.append(len(samples))
        return forward(ids, **more)

    layer.forward = lambda x, *others: x if len(samples) % 3 == 0 else whole(x, *others)
    model.forward = fewer
    return model
