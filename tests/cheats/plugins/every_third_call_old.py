"""Inference: every third call gives the logits of the call before it."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    forward, calls = model.forward, []

    def old(ids, **more):
        fresh = forward(ids, **more) if len(calls) % 3 != 2 else calls[-1]
        calls.append(fresh)
        return fresh

    model.forward = old
    return model
