"""ATen's kernels without vectors by its environment variable."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_environment_variables(config):
    return {"ATEN_CPU_CAPABILITY": "default"}
