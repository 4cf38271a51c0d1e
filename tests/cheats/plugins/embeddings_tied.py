"""Head and embedding are one parameter."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    model.lm_head.weight = model.model.embed_tokens.weight
    return model
