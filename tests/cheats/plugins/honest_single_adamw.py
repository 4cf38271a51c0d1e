"""AdamW's kernel that takes one tensor at a time."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_optimizer_options():
    return {"foreach": False}
