"""The plugins that come with llmb: cpu, and generic for any accelerator torch knows."""
