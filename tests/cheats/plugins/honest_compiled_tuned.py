"""The model is compiled in place with max-autotune."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_warmup_steps():
    return 4


@hookimpl
def llmb_post_process_model(model):
    model.compile(mode="max-autotune", dynamic=False)
    return model
