"""PYTHONWARNINGS names a class of a module, which changes the code of llmb as it is imported."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_environment_variables():
    return {"PYTHONWARNINGS": "ignore::odd_warning.Odd"}
