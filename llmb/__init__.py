"""llmb: an LLM-training benchmark that any hardware vendor can run and any stranger can check."""

__version__ = "0.3.0"
