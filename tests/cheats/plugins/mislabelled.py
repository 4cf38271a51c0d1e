"""What is declared as FP32 is stored and computed in bfloat16."""

from llmb.config import FP32
from llmb.plugin import hookimpl


@hookimpl
def llmb_precisions():
    return [FP32.model_copy(update={"dtype": "bfloat16", "native": False})]
