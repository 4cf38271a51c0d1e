"""AdamW's foreach kernel."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_optimizer_options():
    return {"foreach": True}
