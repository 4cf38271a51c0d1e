"""The model is compiled in place, the default mode."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_warmup_steps():
    return 4


@hookimpl
def llmb_post_process_model(model):
    model.compile()
    return model
