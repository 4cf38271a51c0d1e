"""AdamW's fused kernel."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_optimizer_options():
    return {"fused": True}
